"""The states of one prediction: held, dispatched, then settled, released, or left to the sweeper with a verdict.

A prediction is charged only for what was delivered, that is handed to the client's connection while the client was
still there. So money is held before any work; a whole answer is charged before it is sent, and refunded if it then does
not go out; a stream that ends early is charged at most the tokens that its client was handed. The delivery log has the
same facts for the case that this process is killed.

Under an idempotency key, an answer is charged together with what is kept of it (`kept.py`): a client that left before
it arrived fetches it by its retry.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from billing.errors import BillingError, BudgetExceeded, DuplicateRequest
from billing.hotpath import HoldRequest, Settlement
from billing.pricing import worst_case_nano_usd
from marketplace.accounts.errors import Refusal
from marketplace.gateway.books import AWAY, LATER_SECONDS, Books
from marketplace.gateway.contracts import promises_whole, worst_tokens
from marketplace.gateway.delivery_log import DeliveryLog, LogFull, Slot
from marketplace.gateway.errors import outcome_unknown, unavailable
from marketplace.gateway.kept import IdempotencyKey, Keeper
from marketplace.gateway.offers import Offer, ReplicaAddress
from marketplace.gateway.principals import Principal
from marketplace.gateway.replicas import NotReached, ReplicaLost, Replicas
from marketplace.gateway.requests import PredictionRequest
from marketplace.gateway.validity import Validity
from marketplace.vault.signing import TicketSigner
from protocol.admin import ADMIN_PATH, CancelRequest
from protocol.messages import PREDICTION_HEADER, encode
from protocol.receipts import Grant, Receipt, ReceiptRejected, verify_receipt
from protocol.tickets import TICKET_HEADER, prediction_ticket

logger = logging.getLogger(__name__)

DEADLINE_SECONDS = 300  # of one prediction
HOLD_GRACE_SECONDS = 30  # after the deadline the sweeper takes over
CUT_OFF = "the answer was cut off before it was whole"
_OF_REPLICA = ("stop", "length")  # ends that a replica comes to by itself, and then must not charge for half an answer
CANCEL_SECONDS = 5.0  # how long a replica may take to confirm a cancellation with a receipt


@dataclass(frozen=True)
class Parts:
    """Books, pool, signer and delivery log: used by every prediction."""

    books: Books
    replicas: Replicas
    signer: TicketSigner
    log: DeliveryLog


@dataclass(frozen=True)
class SignedReceipt:
    """A verified receipt, and the token that proves it."""

    token: str
    receipt: Receipt


class Prediction:
    """One request on its way: `hold()` it, dispatch it, relay its answer. Each end frees its slot in the log."""

    def __init__(
        self, parts: Parts, principal: Principal, offer: Offer, request: PredictionRequest, body: bytes
    ) -> None:
        """Raise Refusal 404 for embeddings of a model that sells none."""
        self.id = uuid.uuid4()
        self.offer = offer
        self.request = request
        self.body = body
        self.parts = parts
        self.deadline = time.time() + DEADLINE_SECONDS
        self.attempt = 1
        self.replica: ReplicaAddress | None = None  # that of the attempt, once it has been asked
        self.closed = False  # the books have its end, or will have it: nothing is left to do
        self.tokens = 0  # of this attempt's stream, handed to the client
        self.keeper: Keeper | None = None  # of a request with an idempotency key
        self._unsent = False  # a whole answer is charged, or about to be, and not handed over
        self._slot: Slot | None = None
        self._stops_at_grant = False  # fewer tokens are granted than the request asked for
        self._principal = principal
        self.price = offer.terms.price(request.latency_class, embedding=request.embedding)
        self._max_prompt_tokens, self._max_tokens = worst_tokens(request, offer)
        self.validity = Validity() if promises_whole(request, offer) else None

    @property
    def worst_case_nano_usd(self) -> int:
        return worst_case_nano_usd(self.price, self._max_prompt_tokens, self._max_tokens)

    @property
    def seconds_left(self) -> float:
        """Return the time until the deadline, at least a second."""
        return max(1.0, self.deadline - time.time())

    async def hold(self, *, key: IdempotencyKey | None, replica: ReplicaAddress) -> None:
        """Set the worst case aside for a first attempt at `replica`.

        Raises InsufficientFunds, BudgetExceeded, DuplicateRequest, and Refusal 503.
        """
        try:
            self._slot = self.parts.log.open(self.id)
        except LogFull:
            raise unavailable("This gateway is busy. Nothing was charged; try again.", code="busy") from None
        self._terms = self._hold_request(None if key is None else key.text, replica)
        self.keeper = None if key is None else Keeper(self.id, key)
        try:
            granted = await self.parts.books.place(self._terms)
        except DuplicateRequest as refusal:
            self._close()
            # The first request may have been answered since the look at the key (`replays.py`): the next one finds it.
            duplicate = DuplicateRequest(refusal.prediction_id, "open", refusal.same_body)
            duplicate.headers[PREDICTION_HEADER] = str(refusal.prediction_id)
            raise duplicate from None
        except BillingError:
            self._close()
            raise
        except AWAY as error:
            # The hold may be there. No replica was asked, so no receipt can exist: it only has to be given back.
            logger.error("hold %s not placed: %s", self.id, type(error).__name__)
            self.parts.books.later(self._free_later())
            message = "The platform's database is away. No replica was asked, so nothing was charged; try again."
            raise unavailable(message, code="database") from None
        if granted < self._max_tokens:
            await self._reduce(granted)

    async def _reduce(self, granted: int) -> None:
        """Go on with the tokens that can be paid. Raises BudgetExceeded if not every completion gets one."""
        needed = self._terms.amount_nano_usd
        self._max_tokens = granted
        self._terms = replace(self._terms, max_tokens=granted, amount_nano_usd=self.worst_case_nano_usd)
        if granted < self.request.completions:
            raise await self.refused(BudgetExceeded(self._terms.amount_nano_usd, 0, needed), "the budget ends")
        self._stops_at_grant = True

    def _hold_request(self, idempotency_key: str | None, replica: ReplicaAddress) -> HoldRequest:
        return HoldRequest(
            prediction_id=self.id,
            organization_id=self._principal.organization_id,
            api_key_id=self._principal.api_key_id,
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
            request_hash=hashlib.sha256(self.body).digest(),
            replica_id=replica.id,
            expires_at=datetime.fromtimestamp(self.deadline, UTC) + timedelta(seconds=HOLD_GRACE_SECONDS),
            gateway_id=self.parts.books.gateway_id,
            adapter=self.offer.digest,
            base=self.offer.base_fingerprint,
            max_prompt_tokens=self._max_prompt_tokens,
            max_tokens=self._max_tokens,
            end_user=self.request.end_user,
            on_budget=self.request.on_budget,
        )

    async def next_attempt(self, replica: ReplicaAddress) -> bool:
        """Bind the hold to `replica`, whose turn it is. False: it must not be asked."""
        if not await self.parts.books.next_attempt(self.id, attempt=self.attempt, replica_id=replica.id):
            return False
        self.attempt += 1
        self.handed_over(0)
        return True

    def ticket(self, replica: ReplicaAddress) -> str:
        """Return the ticket of this attempt."""
        return self.parts.signer.sign(
            prediction_ticket(
                prediction_id=self.id,
                attempt=self.attempt,
                replica_id=replica.id,
                organization_id=self._principal.organization_id,
                adapter=self.offer.digest,
                body=self.body,
                deadline=self.deadline,
                max_prompt_tokens=self._max_prompt_tokens,
                max_tokens=self._max_tokens,
                latency_class=self.request.latency_class,
                stop_at_grant=self._stops_at_grant,
            )
        )

    def receipt(self, token: str) -> SignedReceipt:
        """Judge the receipt that came with the answer. Raises ReceiptRejected: call `refuse_receipt` then."""
        assert self.replica is not None
        self._grant = Grant(
            prediction_id=self.id,
            attempt=self.attempt,
            replica_id=self.replica.id,
            adapter=self.offer.digest,
            base=self.offer.base_fingerprint,
            max_prompt_tokens=self._max_prompt_tokens,
            max_tokens=self._max_tokens,
            latency_class=self.request.latency_class,
        )
        self._token = token
        keys = {self.replica.id: bytes(self.replica.receipt_public_key)}
        receipt = verify_receipt(token, self._grant, keys)
        if receipt.completion_tokens and receipt.finish_reason in _OF_REPLICA and self.cut_off(receipt):
            raise ReceiptRejected("completion_tokens", "the receipt charges for an answer that was cut off")
        return SignedReceipt(token, receipt)

    def cut_off(self, receipt: Receipt | None = None) -> bool:
        """Return whether the answer is free, because its contract promised a whole one; None: no receipt came."""
        return self.validity is not None and self.validity.cut_off(receipt.finish_reason if receipt else "interrupted")

    async def refuse_receipt(self, rejection: ReceiptRejected) -> None:
        """Keep the evidence against the last receipt, and release the hold."""
        evidence = (self._grant, self._token, rejection)
        if not await self.parts.books.refuse_receipt(*evidence):
            self.parts.books.later(self._refuse_receipt_later(*evidence))

    def handed_over(self, tokens: int) -> None:
        """Note that a stream's client was handed so many tokens."""
        if not self.closed and self._slot is not None:
            self.tokens = tokens
            self._slot.running(self.attempt, tokens)

    async def about_to_charge(self, answer: dict[str, Any]) -> None:
        """Keep a whole answer if a retry may fetch it; note of any other that it is charged next, then sent."""
        assert self._slot is not None
        if self.keeper is not None:
            await self.keeper.keep_whole(orjson.dumps(answer))
            if self.keeper.fetchable:
                return
        self._unsent = True
        self._slot.unsent(self.attempt)

    async def settle(self, signed: SignedReceipt) -> Settlement | None:
        """Charge what the receipt says. None: the books refuse it for good (`closed`), or the database is away."""
        assert self.replica is not None
        if signed.receipt.completion_tokens and self.cut_off(signed.receipt):  # withdrawn, or lost, midway
            return Settlement(0, already_settled=False) if await self.give_back(CUT_OFF) else None
        try:
            return await self.parts.books.settle(
                self._terms,
                signed.receipt,
                signed.token,
                attempt=self.attempt,
                replica_id=self.replica.id,
                answer=self._kept,
            )
        except BillingError as error:  # a hold that was released, for example
            logger.error("prediction %s is not charged: %s", self.id, error)
            self._close()
        except AWAY as error:
            logger.error("prediction %s not charged yet: %s", self.id, type(error).__name__)
        return None

    def delivered(self, signed: SignedReceipt, settlement: Settlement | None) -> None:
        """Note the good end: the whole answer was handed over, or is kept. A charge that is missing is made later."""
        if settlement is not None:
            self._close()
        elif not self.closed and not self.cut_off(signed.receipt):
            self.handed_over(signed.receipt.completion_tokens)
            self.parts.books.later(self._settle_later(signed))

    async def give_back(self, reason: str) -> bool:
        """Release the hold. True: nothing was charged, for ever. False: the outcome is unknown to the client."""
        if self.closed:
            return False
        if await self.parts.books.free(self.id, reason):
            self._close()
            return True
        self.parts.books.later(self._free_later())
        return False

    async def refused(self, refusal: Refusal, reason: str) -> Refusal:
        """Release the hold and return the refusal, or, where that cannot be promised, the one that says so."""
        return refusal if await self.give_back(reason) else outcome_unknown()

    async def not_taken(self, signed: SignedReceipt, settlement: Settlement | None) -> None:
        """End a whole answer whose client left before it was handed over: it is free, unless a retry may fetch it."""
        if self.keeper is not None and self.keeper.fetchable:
            self.delivered(signed, settlement)
        else:
            await self._never_sent()

    async def _never_sent(self) -> None:
        """Make a whole answer free that may have been charged."""
        if await self.parts.books.never_sent(self.id, "the answer was not delivered"):
            self._close()
        else:
            self.parts.books.later(self._never_sent_later())

    async def hang_up(self, tokens: int) -> bool:
        """Record the verdict that the client was handed `tokens` and no more; stop the replica at once.

        True: a receipt may now settle the hold. False: it is closed, or its verdict is recorded later.
        """
        if self.closed:
            return False
        if tokens and self.keeper is not None:
            self.keeper.keep_stream(None)
            tokens = max(tokens, self.keeper.tokens)  # all that was gathered can be fetched
        if self.replica is not None:
            self.parts.books.later(self.cancel(tokens))
        verdict = await self.parts.books.delivered(self.id, attempt=self.attempt, tokens=tokens, answer=self._kept)
        if verdict is None:
            self.parts.books.later(self._verdict_later(tokens))
        elif verdict != "recorded":
            self._close()
        return verdict == "recorded"

    async def abandon(self) -> None:
        """End it where it stands, because this process stops."""
        if self._unsent and not self.closed:
            await self._never_sent()
        elif await self.hang_up(self.tokens):
            await self.leave_to_sweeper()

    def charged(self) -> None:
        """Note that the books have the charge, and that nothing of it is to be sent."""
        self._close()

    async def leave_to_sweeper(self) -> None:
        """Let the sweeper settle from the replica's journal, now that the verdict is recorded."""
        if not self.closed:
            await self.parts.books.expire(self.id)
            self._close()

    async def cancel(self, tokens: int) -> None:
        """Tell the replica to stop this attempt; its receipt then counts at most `tokens`."""
        assert self.replica is not None
        body = encode(CancelRequest(jti=str(self.id), attempt=self.attempt, delivered_tokens=tokens))
        ticket = self.parts.signer.sign_admin(action="cancel", replica_id=self.replica.id, body=body)
        try:
            answer = await self.parts.replicas.post(
                self.replica.url + ADMIN_PATH.format(action="cancel"),
                body,
                {"content-type": "application/json", TICKET_HEADER: ticket},
                seconds=CANCEL_SECONDS,
            )
            answer.close()
        except (NotReached, ReplicaLost) as error:
            logger.warning("prediction %s not cancelled: %s", self.id, type(error).__name__)

    @property
    def _kept(self) -> bytes | None:
        return None if self.keeper is None else self.keeper.kept

    def _close(self) -> None:
        self.closed = True
        if self._slot is not None:
            self._slot.free()

    async def _free_later(self) -> None:
        await self._verdict_later(0)

    async def _verdict_later(self, tokens: int) -> None:
        if await self._delivered_later(tokens):
            await self.leave_to_sweeper()

    async def _delivered_later(self, tokens: int) -> bool:
        """Record the verdict, and what is kept with it, within `LATER_SECONDS`. False: the database stayed away."""
        delivered = self.parts.books.delivered
        verdict = await delivered(
            self.id, attempt=self.attempt, tokens=tokens, answer=self._kept, patience=LATER_SECONDS
        )
        return verdict is not None

    async def _never_sent_later(self) -> None:
        reason = "the answer was not delivered"
        if await self.parts.books.never_sent(self.id, reason, patience=LATER_SECONDS):
            self._close()

    async def _refuse_receipt_later(self, grant: Grant, token: str, rejection: ReceiptRejected) -> None:
        await self.parts.books.refuse_receipt(grant, token, rejection, patience=LATER_SECONDS)

    async def _settle_later(self, signed: SignedReceipt) -> None:
        """Record first that everything was delivered, so that the sweeper may charge it if this process may not."""
        if not await self._delivered_later(signed.receipt.completion_tokens):
            return
        if await self.settle(signed) is None:
            await self.leave_to_sweeper()
        self._close()
