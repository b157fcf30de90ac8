"""The order that a prediction carries out: one request for one offer, its price, and the most that it may cost.

The hold, every ticket and the grants that receipts are held against follow from it, so they cannot disagree.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from billing.budgets.runs.records import RunState
from billing.hotpath import HoldRequest
from billing.pricing import Price, worst_case_nano_usd
from marketplace.gateway.contracts import worst_tokens
from marketplace.gateway.guarding import Outgoing
from marketplace.gateway.offers import Offer
from marketplace.gateway.principals import Principal
from marketplace.gateway.requests import PredictionRequest
from marketplace.guards.masking import Mask
from protocol.receipts import Grant
from protocol.tickets import Ticket, prediction_ticket

DEADLINE_SECONDS = 300  # of one prediction
HOLD_GRACE_SECONDS = 30  # after the deadline the sweeper takes over
FREE = Price(0, 0, 0, 0)  # of the platform's own measurement of a checkpoint, which nobody ordered


def _deadline() -> float:
    return time.time() + DEADLINE_SECONDS


@dataclass(frozen=True, repr=False)  # its body is a customer's prompt
class Order:
    """`id` is that of the prediction, `deadline` in unix seconds; a hold covers at most the two numbers of tokens.

    `body` is the one that goes out, `came_sha256` is of the one that the caller sent (`guarding.py`).
    """

    principal: Principal
    offer: Offer
    request: PredictionRequest
    body: bytes
    came_sha256: bytes
    price: Price
    max_prompt_tokens: int
    max_tokens: int
    mask: Mask | None = None  # what was taken out of the body, and is put back into the answer
    stops_at_grant: bool = False  # fewer tokens are granted than the request asked for
    run_id: uuid.UUID | None = None  # of the run that it is a call of (`runs.py`)
    ends_with_run: bool = False  # the run's deadline, which its caller chose, comes before its own
    conversation: int | None = None  # the key of what its turns share, by which replicas say whose KV they hold
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    deadline: float = field(default_factory=_deadline)

    @property
    def adapter(self) -> str | None:
        """Return the package whose weights are used, None for the bare base: tickets, holds and grants name it."""
        return None if self.principal.bare_base else self.offer.digest

    @property
    def worst_case_nano_usd(self) -> int:
        return worst_case_nano_usd(self.price, self.max_prompt_tokens, self.max_tokens)

    def reduced(self, granted: int) -> Order:
        """Return the order of as many completion tokens as can be paid."""
        return replace(self, max_tokens=granted, stops_at_grant=True)

    def of_conversation(self, key: int) -> Order:
        """Return the order as a turn of this conversation."""
        return replace(self, conversation=key)

    def in_run(self, run: RunState) -> Order:
        """Return the order as a call of the run, whose deadline becomes its own where it comes sooner."""
        deadline = run.deadline.timestamp()
        sooner = deadline < self.deadline
        return replace(self, run_id=run.id, ends_with_run=sooner, deadline=min(self.deadline, deadline))

    def hold_request(
        self, *, idempotency_key: str | None, replica_id: uuid.UUID, base: str, gateway_id: uuid.UUID
    ) -> HoldRequest:
        """Return the hold of a first attempt at this replica, which serves the checkpoint `base`."""
        return HoldRequest(
            prediction_id=self.id,
            organization_id=self.principal.organization_id,
            api_key_id=self.principal.api_key_id,
            amount_nano_usd=self.worst_case_nano_usd,
            price=self.price,
            price_id=self.offer.price_id,
            latency_class=self.request.latency_class,
            monthly_free_nano_usd=self.offer.terms.monthly_free_nano_usd,
            introductory_free_nano_usd=self.offer.terms.intro_free_nano_usd,
            split_id=self.offer.split_id,
            model_name=self.request.model.listing,  # `version_id` has the version
            model_id=self.offer.model_id,
            version_id=self.offer.version_id,
            creator_organization_id=self.offer.creator_organization_id,
            idempotency_key=idempotency_key,
            request_hash=self.came_sha256,
            replica_id=replica_id,
            expires_at=datetime.fromtimestamp(self.deadline, UTC) + timedelta(seconds=HOLD_GRACE_SECONDS),
            gateway_id=gateway_id,
            adapter=self.adapter,
            base=base,
            max_prompt_tokens=self.max_prompt_tokens,
            max_tokens=self.max_tokens,
            end_user=self.request.end_user,
            on_budget=self.request.on_budget,
            run_id=self.run_id,
        )

    def ticket(
        self,
        *,
        attempt: int,
        replica_id: uuid.UUID,
        action: Literal["predict", "prefill"] = "predict",
        cached_tokens: int | None = None,
    ) -> Ticket:
        """Return the claims that let one replica carry it out, or compute its prompt alone, once.

        cached_tokens: what the replica that computed its prompt had of it before; None: none did
        """
        return prediction_ticket(
            prediction_id=self.id,
            attempt=attempt,
            replica_id=replica_id,
            organization_id=self.principal.organization_id,
            adapter=self.adapter,
            body=self.body,
            deadline=self.deadline,
            max_prompt_tokens=self.max_prompt_tokens,
            max_tokens=0 if action == "prefill" else self.max_tokens,
            latency_class=self.request.latency_class,
            action=action,
            cached_tokens=cached_tokens,
            stop_at_grant=self.stops_at_grant,
            teaches=self.principal.teaches,
            contract=self.offer.digest if self.principal.bare_base and self.offer.contract is not None else None,
            conversation=self.conversation,
        )

    def grant(self, *, attempt: int, replica_id: uuid.UUID, base: str) -> Grant:
        """Return what a receipt of this attempt is held against."""
        return Grant(
            prediction_id=self.id,
            attempt=attempt,
            replica_id=replica_id,
            adapter=self.adapter,
            base=base,
            max_prompt_tokens=self.max_prompt_tokens,
            max_tokens=self.max_tokens,
            latency_class=self.request.latency_class,
        )


def order_of(principal: Principal, offer: Offer, outgoing: Outgoing, *, came: bytes) -> Order:
    """Return the order of what goes out for a body that `came`.

    Raises Refusal 404 for embeddings of a model that sells none.
    """
    request = outgoing.request
    price = offer.terms.price(request.latency_class, embedding=request.embedding)
    if principal.measures:
        price = FREE
    max_prompt_tokens, max_tokens = worst_tokens(request, offer)
    digest = hashlib.sha256(came).digest()
    return Order(
        principal, offer, request, outgoing.body, digest, price, max_prompt_tokens, max_tokens, mask=outgoing.mask
    )
