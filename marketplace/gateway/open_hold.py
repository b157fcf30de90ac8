"""The hold of one prediction, from its place in the books to its end there, and its slot in the delivery log.

Each end frees the slot. An end that the database misses is entered later, without a client who waits for it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from uuid import UUID

from billing.errors import BillingError, DuplicateRequest
from billing.hotpath import HoldRequest, Settlement
from marketplace.gateway.books import AWAY, LATER_SECONDS, Books
from marketplace.gateway.delivery_log import DeliveryLog, LogFull, Slot
from marketplace.gateway.errors import unavailable
from marketplace.gateway.kept import Keeper
from protocol.messages import PREDICTION_HEADER
from protocol.receipts import Grant, Receipt, ReceiptRejected

logger = logging.getLogger(__name__)

_UNDELIVERED = "the answer was not delivered"


@dataclass(frozen=True)
class SignedReceipt:
    """A verified receipt, and the token that proves it."""

    token: str
    receipt: Receipt


class OpenHold:
    """`attempt` is the one that it is bound to; `tokens` of that attempt's stream were handed to the client."""

    def __init__(self, books: Books, prediction_id: UUID) -> None:
        """Start without a hold and without a slot."""
        self.attempt = 1
        self.tokens = 0
        self.closed = False  # the books have its end, or will have it: nothing is left to do
        self.unsent = False  # a whole answer is charged, or about to be, and not handed over
        self._books, self._id = books, prediction_id
        self._keeper: Keeper | None = None
        self._slot: Slot | None = None

    def open(self, log: DeliveryLog) -> None:
        """Take a slot. Raises Refusal 503."""
        try:
            self._slot = log.open(self._id)
        except LogFull:
            raise unavailable("This gateway is busy. Nothing was charged; try again.", code="busy") from None

    async def place(self, request: HoldRequest, keeper: Keeper | None) -> int:
        """Set the money aside and return the completion tokens that are granted; `keeper` has the answer to be kept.

        Raises InsufficientFunds, BudgetExceeded, DuplicateRequest, and Refusal 503.
        """
        self._request, self._keeper = request, keeper
        try:
            return await self._books.place(request)
        except DuplicateRequest as refusal:
            self.close()
            # The first request may have been answered since the look at the key (`replays.py`): the next one finds it.
            duplicate = DuplicateRequest(refusal.prediction_id, "open", refusal.same_body)
            duplicate.headers[PREDICTION_HEADER] = str(refusal.prediction_id)
            raise duplicate from None
        except BillingError:
            self.close()
            raise
        except AWAY as error:
            # The hold may be there. No replica was asked, so no receipt can exist: it only has to be given back.
            logger.error("hold %s not placed: %s", self._id, type(error).__name__)
            self._books.later(self._verdict_later(0))
            message = "The platform's database is away. No replica was asked, so nothing was charged; try again."
            raise unavailable(message, code="database") from None

    def reduce(self, *, max_tokens: int, amount_nano_usd: int) -> None:
        """Note that the books granted less than was asked of them."""
        self._request = replace(self._request, max_tokens=max_tokens, amount_nano_usd=amount_nano_usd)

    async def next_attempt(self, replica_id: UUID, *, base: str) -> bool:
        """Bind it to another replica and its checkpoint. False: that replica must not be asked."""
        if not await self._books.next_attempt(self._id, attempt=self.attempt, replica_id=replica_id, base=base):
            return False
        self.attempt += 1
        self.handed_over(0)
        return True

    def handed_over(self, tokens: int) -> None:
        """Note that a stream's client was handed so many tokens."""
        if not self.closed and self._slot is not None:
            self.tokens = tokens
            self._slot.running(self.attempt, tokens)

    def about_to_charge(self) -> None:
        """Note that a whole answer, which no retry may fetch, is charged next, then sent."""
        assert self._slot is not None
        self.unsent = True
        self._slot.unsent(self.attempt)

    async def settle(self, signed: SignedReceipt, replica_id: UUID) -> Settlement | None:
        """Charge what the receipt says. None: the books refuse it for good (`closed`), or the database is away."""
        try:
            return await self._books.settle(
                self._request,
                signed.receipt,
                signed.token,
                attempt=self.attempt,
                replica_id=replica_id,
                answer=self._kept,
            )
        except BillingError as error:  # a hold that was released, for example
            logger.error("prediction %s is not charged: %s", self._id, error)
            self.close()
        except AWAY as error:
            logger.error("prediction %s not charged yet: %s", self._id, type(error).__name__)
        return None

    def settle_later(self, signed: SignedReceipt, replica_id: UUID) -> None:
        """Charge an answer that was handed over without its charge."""
        self.handed_over(signed.receipt.completion_tokens)
        self._books.later(self._settle_later(signed, replica_id))

    async def refuse_receipt(self, grant: Grant, token: str, rejection: ReceiptRejected) -> None:
        """Keep the evidence against a receipt, and release the hold."""
        if not await self._books.refuse_receipt(grant, token, rejection):
            self._books.later(self._refuse_receipt_later(grant, token, rejection))

    async def release(self, reason: str) -> bool:
        """Give the money back. True: nothing was charged, for ever. False: the outcome is unknown to the client."""
        if self.closed:
            return False
        if await self._books.free(self._id, reason):
            self.close()
            return True
        self._books.later(self._verdict_later(0))
        return False

    async def never_sent(self) -> None:
        """Make a whole answer free that may have been charged."""
        if await self._books.never_sent(self._id, _UNDELIVERED):
            self.close()
        else:
            self._books.later(self._never_sent_later())

    async def verdict(self, tokens: int) -> bool:
        """Record that the client was handed `tokens` and no more. False: it is closed, or that is recorded later."""
        verdict = await self._books.delivered(self._id, attempt=self.attempt, tokens=tokens, answer=self._kept)
        if verdict is None:
            self._books.later(self._verdict_later(tokens))
        elif verdict != "recorded":
            self.close()
        return verdict == "recorded"

    async def leave_to_sweeper(self) -> None:
        """Let the sweeper settle from the replica's journal, now that the verdict is recorded."""
        if not self.closed:
            await self._books.expire(self._id)
            self.close()

    def close(self) -> None:
        """Note that the books have its end, or need none."""
        self.closed = True
        if self._slot is not None:
            self._slot.free()

    @property
    def _kept(self) -> bytes | None:
        return None if self._keeper is None else self._keeper.kept

    async def _settle_later(self, signed: SignedReceipt, replica_id: UUID) -> None:
        """Record first that everything was delivered, so that the sweeper may charge it if this process may not."""
        if not await self._delivered_later(signed.receipt.completion_tokens):
            return
        if await self.settle(signed, replica_id) is None:
            await self.leave_to_sweeper()
        self.close()

    async def _verdict_later(self, tokens: int) -> None:
        if await self._delivered_later(tokens):
            await self.leave_to_sweeper()

    async def _delivered_later(self, tokens: int) -> bool:
        """Record the verdict, and what is kept with it, within `LATER_SECONDS`. False: the database stayed away."""
        delivered = self._books.delivered
        verdict = await delivered(
            self._id, attempt=self.attempt, tokens=tokens, answer=self._kept, patience=LATER_SECONDS
        )
        return verdict is not None

    async def _never_sent_later(self) -> None:
        if await self._books.never_sent(self._id, _UNDELIVERED, patience=LATER_SECONDS):
            self.close()

    async def _refuse_receipt_later(self, grant: Grant, token: str, rejection: ReceiptRejected) -> None:
        await self._books.refuse_receipt(grant, token, rejection, patience=LATER_SECONDS)
