"""The states of one prediction: held, dispatched, then settled, released, or left to the sweeper with a verdict.

A prediction is charged only for what was delivered, that is handed to the client's connection while the client was
still there. So money is held before any work; a whole answer is charged before it is sent, and refunded if it then does
not go out; a stream that ends early is charged at most the tokens that its client was handed. The delivery log has the
same facts for the case that this process is killed.

Under an idempotency key, an answer is charged together with what is kept of it (`kept.py`): a client that left before
it arrived fetches it by its retry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson

from billing.errors import BudgetExceeded
from billing.hotpath import Settlement
from marketplace.accounts.errors import Refusal
from marketplace.gateway.books import Books
from marketplace.gateway.contracts import whole_schema
from marketplace.gateway.delivery_log import DeliveryLog
from marketplace.gateway.effects import Effects
from marketplace.gateway.errors import outcome_unknown
from marketplace.gateway.kept import IdempotencyKey, Keeper
from marketplace.gateway.open_hold import OpenHold, SignedReceipt
from marketplace.gateway.order import Order
from marketplace.gateway.pools import Pools, ReplicaAddress
from marketplace.gateway.prefilled import Prefilled
from marketplace.gateway.replicas import NotReached, ReplicaLost, Replicas
from marketplace.gateway.tracing import Trace
from marketplace.gateway.validity import Validity
from marketplace.vault.signing import TicketSigner
from protocol.admin import ADMIN_PATH, CancelRequest
from protocol.messages import encode
from protocol.receipts import Grant, Receipt, ReceiptRejected, verify_receipt
from protocol.tickets import TICKET_HEADER
from protocol.tracing import TRACEPARENT

logger = logging.getLogger(__name__)

CUT_OFF = "the answer was cut off before it was whole"
_OF_REPLICA = ("stop", "length")  # ends that a replica comes to by itself, and then must not charge for half an answer
CANCEL_SECONDS = 5.0  # how long a replica may take to confirm a cancellation with a receipt


@dataclass(frozen=True)
class Parts:
    """Books, connections, pools, signer, delivery log, and counts of harm: used by every prediction."""

    books: Books
    replicas: Replicas
    pools: Pools
    signer: TicketSigner
    log: DeliveryLog
    effects: Effects


class Prediction:
    """One order on its way: `hold()` it, dispatch it, relay its answer, and call one of its ends."""

    def __init__(self, parts: Parts, order: Order, *, heard: bool = False, trace: Trace | None = None) -> None:
        """Start with nothing held. `heard`: the answer's text is noted, whatever the contract says."""
        self.trace = trace
        if trace is not None:
            trace.asked(order)
        self.id = order.id
        self.order = order
        self.mask = order.mask  # what is put back into the answer
        self.parts = parts
        self.prefilled: Prefilled | None = None  # its prompt, where another replica has computed it
        self.replica: ReplicaAddress | None = None  # that of the attempt, once it has been asked
        self.lost: list[UUID] = []  # replicas that were asked before, and lost
        self.keeper: Keeper | None = None  # of a request with an idempotency key
        schema = None if order.ends_with_run else whole_schema(order.request, order.offer)
        self.heard = Validity(schema) if heard or schema is not None else None
        self._hold = OpenHold(parts.books, order.id)

    @property
    def seconds_left(self) -> float:
        """Return the time until the deadline, at least a second."""
        return max(1.0, self.order.deadline - time.time())

    async def hold(self, *, key: IdempotencyKey | None, replica: ReplicaAddress) -> None:
        """Set the worst case aside for a first attempt at `replica`.

        Raises InsufficientFunds, BudgetExceeded, DuplicateRequest, and Refusal 503.
        """
        self._hold.open(self.parts.log)
        request = self.order.hold_request(
            idempotency_key=None if key is None else key.text,
            replica_id=replica.id,
            base=replica.base_fingerprint,
            gateway_id=self.parts.books.gateway_id,
        )
        self.keeper = None if key is None else Keeper(self.id, key)
        granted = await self._hold.place(request, self.keeper)
        if granted < self.order.max_tokens:
            await self._reduce(granted)

    async def _reduce(self, granted: int) -> None:
        """Go on with the tokens that can be paid. Raises BudgetExceeded if not every completion gets one."""
        needed = self.order.worst_case_nano_usd
        self.order = self.order.reduced(granted)
        affordable = self.order.worst_case_nano_usd
        self._hold.reduce(max_tokens=granted, amount_nano_usd=affordable)
        if granted < self.order.request.completions:
            raise await self.refused(BudgetExceeded(affordable, 0, needed), "the budget ends")

    async def next_attempt(self, replica: ReplicaAddress) -> bool:
        """Bind the hold to `replica`, whose turn it is. False: it must not be asked."""
        return await self._hold.next_attempt(replica.id, base=replica.base_fingerprint)

    def trace_headers(self, replica: ReplicaAddress) -> dict[str, str]:
        """Return the header of this attempt's span; nothing where nothing is traced."""
        return {} if self.trace is None else {TRACEPARENT: self.trace.attempt(self._hold.attempt, replica.name)}

    def ticket(self, replica: ReplicaAddress) -> str:
        """Return the ticket of this attempt."""
        cached = None if self.prefilled is None else self.prefilled.receipt.cached_tokens
        ticket = self.order.ticket(attempt=self._hold.attempt, replica_id=replica.id, cached_tokens=cached)
        return self.parts.signer.sign(ticket)

    def prefill_ticket(self, replica: ReplicaAddress) -> str:
        """Return the ticket that has the prompt alone computed."""
        ticket = self.order.ticket(attempt=self._hold.attempt, replica_id=replica.id, action="prefill")
        return self.parts.signer.sign(ticket)

    def prefill_grant(self, replica: ReplicaAddress) -> Grant:
        """Return what the receipt of the prompt alone is held against."""
        grant = self.order.grant(attempt=self._hold.attempt, replica_id=replica.id, base=replica.base_fingerprint)
        return replace(grant, max_tokens=0)

    def pull_headers(self, replica: ReplicaAddress) -> dict[str, str]:
        """Return the header by which this attempt's replica pulls the prompt's KV; nothing where none computed it."""
        if self.prefilled is None:
            return {}
        parts = self.order, replica
        return self.prefilled.pull_headers(*parts, attempt=self._hold.attempt, signer=self.parts.signer)

    def receipt(self, token: str) -> SignedReceipt:
        """Judge the receipt that came with the answer. Raises ReceiptRejected: call `refuse_receipt` then."""
        assert self.replica is not None
        self._grant = self.order.grant(
            attempt=self._hold.attempt, replica_id=self.replica.id, base=self.replica.base_fingerprint
        )
        self._token = token
        keys = {self.replica.id: bytes(self.replica.receipt_public_key)}
        receipt = verify_receipt(token, self._grant, keys)
        if receipt.completion_tokens and receipt.finish_reason in _OF_REPLICA and self.cut_off(receipt):
            raise ReceiptRejected("completion_tokens", "the receipt charges for an answer that was cut off")
        return SignedReceipt(token, receipt)

    def cut_off(self, receipt: Receipt | None = None) -> bool:
        """Return whether the answer is free, because its contract promised a whole one; None: no receipt came."""
        return self.heard is not None and self.heard.cut_off(receipt.finish_reason if receipt else "interrupted")

    def _charges_for_half(self, receipt: Receipt) -> bool:
        """Return whether the receipt counts tokens of an answer that is free: it was withdrawn, or lost, midway."""
        return receipt.completion_tokens > 0 and self.cut_off(receipt)

    async def refuse_receipt(self, rejection: ReceiptRejected) -> None:
        """Keep the evidence against the last receipt, and release the hold."""
        await self._hold.refuse_receipt(self._grant, self._token, rejection)

    def handed_over(self, tokens: int) -> None:
        """Note that a stream's client was handed so many tokens."""
        self._hold.handed_over(tokens)

    async def about_to_charge(self, answer: dict[str, Any]) -> None:
        """Keep a whole answer if a retry may fetch it; note of any other that it is charged next, then sent."""
        if self.keeper is not None:
            await self.keeper.keep_whole(orjson.dumps(answer))
            if self.keeper.fetchable:
                return
        self._hold.about_to_charge()

    async def settle(self, signed: SignedReceipt) -> Settlement | None:
        """Charge what the receipt says. None: the books refuse it for good, or the database is away."""
        assert self.replica is not None
        if self._charges_for_half(signed.receipt):
            return Settlement(0, already_settled=False) if await self.give_back(CUT_OFF) else None
        began = time.time_ns()
        settlement = await self._hold.settle(signed, self.replica.id)
        if self.trace is not None and settlement is not None:
            self.trace.charged(signed.receipt, began_ns=began)
        return settlement

    def delivered(self, signed: SignedReceipt, settlement: Settlement | None) -> None:
        """Note the good end: the whole answer was handed over, or is kept. A charge that is missing is made later."""
        assert self.replica is not None
        if settlement is not None:
            self._hold.close()
        elif not self._hold.closed and not self._charges_for_half(signed.receipt):  # that one is freed by `give_back`
            self._hold.settle_later(signed, self.replica.id)

    async def give_back(self, reason: str) -> bool:
        """Release the hold. True: nothing was charged, for ever. False: the outcome is unknown to the client."""
        return await self._hold.release(reason)

    async def refused(self, refusal: Refusal, reason: str) -> Refusal:
        """Release the hold and return the refusal, or, where that cannot be promised, the one that says so."""
        return refusal if await self.give_back(reason) else outcome_unknown()

    async def not_taken(self, signed: SignedReceipt, settlement: Settlement | None) -> None:
        """End a whole answer whose client left before it was handed over: it is free, unless a retry may fetch it."""
        if self.keeper is not None and self.keeper.fetchable:
            self.delivered(signed, settlement)
        else:
            await self._hold.never_sent()

    async def hang_up(self, tokens: int) -> bool:
        """Record the verdict that the client was handed `tokens` and no more; stop the replica at once.

        True: a receipt may now settle the hold. False: it is closed, or its verdict is recorded later.
        """
        if self._hold.closed:
            return False
        if tokens and self.keeper is not None:
            self.keeper.keep_stream(None)
            tokens = max(tokens, self.keeper.tokens)  # all that was gathered can be fetched
        if self.replica is not None:
            self.parts.books.later(self.cancel(tokens))
        return await self._hold.verdict(tokens)

    async def abandon(self) -> None:
        """End it where it stands, because this process stops."""
        if self._hold.unsent and not self._hold.closed:
            await self._hold.never_sent()
        elif await self.hang_up(self._hold.tokens):
            await self._hold.leave_to_sweeper()

    def charged(self) -> None:
        """Note that the books have the charge, and that nothing of it is to be sent."""
        self._hold.close()

    async def leave_to_sweeper(self) -> None:
        """Let the sweeper settle from the replica's journal, now that the verdict is recorded."""
        await self._hold.leave_to_sweeper()

    def cancel(self, tokens: int) -> Coroutine[Any, Any, None]:
        """Return what stops the attempt of this moment at its replica; its receipt then counts at most `tokens`."""
        assert self.replica is not None
        body = encode(CancelRequest(jti=str(self.id), attempt=self._hold.attempt, delivered_tokens=tokens))
        return self._send_cancel(self.replica, body)

    async def _send_cancel(self, replica: ReplicaAddress, body: bytes) -> None:
        ticket = self.parts.signer.sign_admin(action="cancel", replica_id=replica.id, body=body)
        try:
            answer = await self.parts.replicas.post(
                replica.url + ADMIN_PATH.format(action="cancel"),
                body,
                {"content-type": "application/json", TICKET_HEADER: ticket},
                seconds=CANCEL_SECONDS,
            )
            answer.close()
        except (NotReached, ReplicaLost) as error:
            logger.warning("prediction %s not cancelled: %s", self.id, type(error).__name__)
