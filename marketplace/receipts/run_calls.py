"""The calls of a run with the times of their receipts, for its page and the API.

A replica's receipt says how long it worked, when its first token came, both since the request arrived there, and how
long the request waited in its queue, which is a part of both. The rest of a call's time is the platform's and the
network's. Of the answer it says one thing: whether the arguments of its calls of functions followed their schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from msgspec import UNSET

from billing.budgets.runs.selectors import Call, with_usage
from billing.models import Hold
from protocol.receipts import Receipt, ReceiptRejected, ToolArguments, claims_of


@dataclass(frozen=True, slots=True)
class CallView:
    """One call. Times are in milliseconds; None: it is not known, because there is no receipt."""

    prediction_id: UUID
    model: str
    state: str  # running, charged or free
    reason: str  # how it finished, or why it was free
    started_at: datetime
    ended_at: datetime | None
    attempt: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano_usd: int
    total_ms: int | None
    replica_ms: int | None
    first_token_ms: int | None
    queue_ms: int | None = None
    tool_arguments: ToolArguments | None = None  # None: no call of a function, or it could not be told

    @property
    def outside_ms(self) -> int | None:
        """Return the time that the call did not spend at its replica."""
        if self.total_ms is None or self.replica_ms is None:
            return None
        return max(0, self.total_ms - self.replica_ms)

    @property
    def has_receipt(self) -> bool:
        """Return whether there is a receipt to look at."""
        return self.state == "charged"


def calls_in(holds: Sequence[Hold]) -> list[CallView]:
    """Return the calls of these holds, in their order."""
    return [_view(call) for call in with_usage(holds)]


def _view(call: Call) -> CallView:
    hold, usage = call.hold, call.usage
    claims = None if usage is None else _claims(usage.receipt)
    total = None if hold.closed_at is None else round((hold.closed_at - hold.created_at).total_seconds() * 1_000)
    return CallView(
        prediction_id=hold.pk,
        model=hold.model_name,
        state=call.state,
        reason=hold.close_reason if usage is None else usage.finish_reason,
        started_at=hold.created_at,
        ended_at=hold.closed_at,
        attempt=hold.attempt,
        prompt_tokens=0 if usage is None else usage.prompt_tokens,
        cached_tokens=0 if usage is None else usage.cached_tokens,
        completion_tokens=0 if usage is None else usage.completion_tokens,
        cost_nano_usd=hold.cost_nano_usd or 0,
        total_ms=total,
        replica_ms=None if claims is None else claims.duration_ms,
        first_token_ms=None if claims is None else claims.ttft_ms,
        queue_ms=None if claims is None or claims.queue_ms is UNSET else claims.queue_ms,
        tool_arguments=None if claims is None or claims.tool_arguments is UNSET else claims.tool_arguments,
    )


def _claims(receipt: str) -> Receipt | None:
    try:
        return claims_of(receipt)
    except ReceiptRejected:
        return None
