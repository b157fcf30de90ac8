"""Bad luck on demand: lost connections, refusals, and webhooks that come twice, late or in another order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from devstack.stripe_double.messages import ConnectionDropped, Refused, Request

T = TypeVar("T")


class FaultKind(StrEnum):
    DROP_BEFORE_COMMIT = "drop_before_commit"  # nothing happened, no answer
    DROP_AFTER_COMMIT = "drop_after_commit"  # it happened, the answer is lost
    CONFLICT = "conflict"  # 409
    RATE_LIMIT = "rate_limit"  # 429
    SERVER_ERROR = "server_error"  # 500, and again for as long as the same idempotency key comes
    DECLINE = "decline"  # the bank refuses the card
    AUTHENTICATION = "authentication"  # the bank wants to ask the card's holder (3-D Secure)


_REFUSALS = {
    FaultKind.CONFLICT: (409, "invalid_request_error", "idempotency_key_in_use"),
    FaultKind.RATE_LIMIT: (429, "invalid_request_error", "rate_limit"),
    FaultKind.SERVER_ERROR: (500, "api_error", None),
}


@dataclass
class Fault:
    """A fault for the next `times` requests of `method` whose path contains `path`.

    A bank's decision is a fault of the next `times` payments, also of those on a page.
    """

    kind: FaultKind
    path: str = "/v1/"
    method: str = "POST"
    times: int = 1


@dataclass
class WebhookFaults:
    """The faults of every batch of webhooks. `seed` makes the shuffling repeatable; `lost` types never arrive."""

    copies: int = 1
    delay_seconds: float = 0.0
    shuffle: bool = False
    seed: int = 0
    lost: Sequence[str] = ()

    def apply(self, batch: Sequence[T]) -> list[T]:
        """Return the batch as it will be sent."""
        sent = [delivery for delivery in batch for _copy in range(self.copies)]
        if self.shuffle:
            random.Random(self.seed).shuffle(sent)
        return sent


@dataclass
class FaultPlan:
    """The faults that wait for their request, in order."""

    requests: list[Fault] = field(default_factory=list)
    webhooks: WebhookFaults = field(default_factory=WebhookFaults)

    def before_commit(self, request: Request) -> None:
        """Raise ConnectionDropped or Refused if a fault says so; nothing has happened yet."""
        kind = self._take(request, frozenset(_REFUSALS) | {FaultKind.DROP_BEFORE_COMMIT})
        if kind is FaultKind.DROP_BEFORE_COMMIT:
            raise ConnectionDropped
        if kind is not None:
            status, error_type, code = _REFUSALS[kind]
            raise Refused(status, error_type, f"Injected fault: {kind}", code=code)

    def after_commit(self, request: Request) -> None:
        """Raise ConnectionDropped if a fault says so; the state is saved."""
        if self._take(request, frozenset({FaultKind.DROP_AFTER_COMMIT})) is not None:
            raise ConnectionDropped

    def injected(self, kind: FaultKind) -> bool:
        """Return whether the next payment meets this decision of a bank, and use it up."""
        return self._take(None, frozenset({kind})) is not None

    def _take(self, request: Request | None, kinds: frozenset[FaultKind]) -> FaultKind | None:
        for fault in self.requests:
            if fault.kind in kinds and (
                request is None or (fault.method == request.method and fault.path in request.path)
            ):
                fault.times -= 1
                if fault.times <= 0:
                    self.requests.remove(fault)
                return fault.kind
        return None
