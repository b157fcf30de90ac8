"""The life of one prediction: hold, ticket, dispatch, stream, settle (docs/structure.md, docs/protocol.md).

The order is what keeps the bill right: money is held before any work; the settlement is committed before the client
sees the end of its answer; whatever happens in between, an open hold is settled later from the replica's journal.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from psycopg import Error as DatabaseError
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from billing.errors import BillingError, DuplicateRequest
from billing.hotpath import (
    HoldRequest,
    Settlement,
    expire_hold,
    next_attempt,
    place_hold,
    release_hold,
    settle_hold,
)
from billing.pricing import TokenUsage, worst_case_nano_usd
from marketplace.accounts.errors import Refusal
from marketplace.gateway.errors import ReplicaRefusal, replica_failed, revoked, unavailable
from marketplace.gateway.offers import Offer, ReplicaAddress
from marketplace.gateway.principals import Principal
from marketplace.gateway.requests import PredictionRequest
from marketplace.vault.signing import TicketSigner
from protocol.admin import ADMIN_PATH, CancelRequest
from protocol.bodies import collect_stream
from protocol.errors import ProtocolError
from protocol.messages import PREDICTION_HEADER, OpenAIErrorAnswer, decode, encode
from protocol.receipts import Grant, Receipt, verify_receipt
from protocol.request_ids import REQUEST_ID_HEADER
from protocol.tickets import TICKET_HEADER, prediction_ticket

logger = logging.getLogger(__name__)

DEADLINE_SECONDS = 300  # of one prediction
HOLD_GRACE_SECONDS = 30  # after the deadline the sweeper takes over
CANCEL_SECONDS = 5.0  # how long a replica may take to confirm a cancellation with a receipt


@dataclass(frozen=True)
class Parts:
    """Pools, signer and the creators' share: used by every prediction."""

    database: AsyncConnectionPool[Any]
    replicas: aiohttp.ClientSession
    signer: TicketSigner
    creator_bps: int


@dataclass(frozen=True)
class SignedReceipt:
    """A verified receipt, and the token that proves it."""

    token: str
    receipt: Receipt


class Prediction:
    """One request on its way. Create it, `hold()`, `dispatch()`, then read the answer and `settle()` or `release()`."""

    def __init__(
        self, parts: Parts, principal: Principal, offer: Offer, request: PredictionRequest, body: bytes
    ) -> None:
        self.id = uuid.uuid4()
        self.offer = offer
        self.request = request
        self._parts = parts
        self._principal = principal
        self._body = body
        self._body_hash = hashlib.sha256(body).digest()
        self._max_prompt_tokens = request.worst_prompt_tokens(offer.context_length)
        self._max_tokens = request.worst_tokens(offer.context_length)
        self._deadline = time.time() + DEADLINE_SECONDS
        self._closed = False  # settled or released
        self.replica: ReplicaAddress | None = None
        self.attempt = 1
        self.delivered_tokens = 0  # completion tokens of the events that were sent to the client

    @property
    def worst_case_nano_usd(self) -> int:
        return worst_case_nano_usd(self.offer.price, self._max_prompt_tokens, self._max_tokens)

    async def hold(self, *, idempotency_key: str | None, replica_id: uuid.UUID) -> None:
        """Set the worst case aside; `replica_id` is the first candidate, noted for the sweeper.

        Raises InsufficientFunds, BudgetExceeded, DuplicateRequest.
        """
        request = HoldRequest(
            prediction_id=self.id,
            organization_id=self._principal.organization_id,
            api_key_id=self._principal.api_key_id,
            amount_nano_usd=self.worst_case_nano_usd,
            price=self.offer.price,
            creator_bps=self._parts.creator_bps,
            model_name=str(self.request.model),
            model_id=self.offer.model_id,
            version_id=self.offer.version_id,
            creator_organization_id=self.offer.creator_organization_id,
            idempotency_key=idempotency_key,
            request_hash=self._body_hash,
            replica_id=replica_id,
            expires_at=datetime.fromtimestamp(self._deadline, UTC) + timedelta(seconds=HOLD_GRACE_SECONDS),
            gateway_id=None,
            adapter=self.offer.digest,
            base=self.offer.base_fingerprint,
            max_prompt_tokens=self._max_prompt_tokens,
            max_tokens=self._max_tokens,
        )
        try:
            async with self._parts.database.connection() as connection:
                await place_hold(connection, request)
        except DuplicateRequest as refusal:
            refusal.headers[PREDICTION_HEADER] = str(refusal.prediction_id)
            raise

    async def dispatch(self, path: str, candidates: list[ReplicaAddress], request_id: str) -> aiohttp.ClientResponse:
        """Send the ticketed request to the first replica that takes it; its 200 response, body unread. The replica
        logs `request_id`.

        Raises Refusal with the replica's refusal, or 503; the hold is released by then.
        """
        refusal: Refusal = unavailable("No replica could be reached. Nothing was charged; try again.")
        for replica in candidates:
            if self.replica is not None and not await self._next_attempt(replica):
                break
            self.replica = replica
            try:
                response = await self._parts.replicas.post(
                    replica.url + path,
                    data=self._body,
                    headers={
                        "content-type": "application/json",
                        TICKET_HEADER: self._ticket(replica),
                        REQUEST_ID_HEADER: request_id,
                    },
                    timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS + 5, sock_connect=2),
                )
            except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, aiohttp.ConnectionTimeoutError):
                continue  # it took nothing: the next one may run this ticket's prediction
            except (aiohttp.ClientError, TimeoutError) as error:
                refusal = unavailable("The replica failed before answering. Nothing was charged; try again.")
                logger.warning("prediction %s: %s", self.id, type(error).__name__)
                break
            if response.status == 200:
                return response
            refusal = await _refusal(response)
            if response.status not in (429, 503):
                break
        await self.release("refused")
        raise refusal

    async def _next_attempt(self, replica: ReplicaAddress) -> bool:
        """Bind the hold to `replica`. False when the hold is closed, or the database away."""
        try:
            async with self._parts.database.connection() as connection:
                moved = await next_attempt(connection, self.id, attempt=self.attempt, replica_id=replica.id)
        except (DatabaseError, PoolTimeout) as error:
            logger.error("hold %s not moved to another replica: %s", self.id, type(error).__name__)
            return False
        self.attempt += moved
        return moved

    def _ticket(self, replica: ReplicaAddress) -> str:
        return self._parts.signer.sign(
            prediction_ticket(
                prediction_id=self.id,
                attempt=self.attempt,
                replica_id=replica.id,
                organization_id=self._principal.organization_id,
                adapter=self.offer.digest,
                body=self._body,
                deadline=self._deadline,
                max_prompt_tokens=self._max_prompt_tokens,
                max_tokens=self._max_tokens,
            )
        )

    def receipt(self, token: str) -> SignedReceipt:
        """Verify the receipt that came with the answer. Raises ReceiptRejected."""
        assert self.replica is not None
        grant = Grant(
            prediction_id=self.id,
            attempt=self.attempt,
            replica_id=self.replica.id,
            adapter=self.offer.digest,
            base=self.offer.base_fingerprint,
            max_prompt_tokens=self._max_prompt_tokens,
            max_tokens=self._max_tokens,
        )
        keys = {self.replica.id: bytes(self.replica.receipt_public_key)}
        return SignedReceipt(token, verify_receipt(token, grant, keys))

    async def settle(self, signed: SignedReceipt) -> Settlement | None:
        """Charge what the receipt says. None when the database is away: the sweeper will settle from the journal."""
        assert self.replica is not None
        try:
            async with self._parts.database.connection() as connection:
                settlement = await settle_hold(
                    connection,
                    self.id,
                    TokenUsage(
                        prompt_tokens=signed.receipt.prompt_tokens,
                        cached_tokens=signed.receipt.cached_tokens,
                        completion_tokens=signed.receipt.completion_tokens,
                    ),
                    attempt=self.attempt,
                    finish_reason=signed.receipt.finish_reason,
                    receipt=signed.token,
                    replica_id=self.replica.id,
                )
        except (DatabaseError, PoolTimeout, BillingError) as error:
            logger.error("prediction %s delivered but not settled: %s %s", self.id, type(error).__name__, error)
            return None
        self._closed = True
        return settlement

    async def release(self, reason: str) -> None:
        """Give the money back. Does nothing once settled."""
        if self._closed:
            return
        try:
            async with self._parts.database.connection() as connection:
                await release_hold(connection, self.id, reason=reason)
            self._closed = True
        except (DatabaseError, PoolTimeout) as error:
            logger.error("hold %s not released yet: %s", self.id, type(error).__name__)

    async def cancel(self) -> None:
        """Tell the replica to stop; its stream then ends with a receipt."""
        assert self.replica is not None
        body = encode(CancelRequest(str(self.id), self.attempt, self.delivered_tokens))
        ticket = self._parts.signer.sign_admin(action="cancel", replica_id=self.replica.id, body=body)
        try:
            async with self._parts.replicas.post(
                self.replica.url + ADMIN_PATH.format(action="cancel"),
                data=body,
                headers={"content-type": "application/json", TICKET_HEADER: ticket},
                timeout=aiohttp.ClientTimeout(total=CANCEL_SECONDS),
            ):
                pass
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("prediction %s not cancelled: %s", self.id, type(error).__name__)

    async def hand_to_sweeper(self) -> None:
        """Let the sweeper look at the journal at once: replica or connection broke, so the outcome is unknown."""
        if self._closed:
            return
        try:
            async with self._parts.database.connection() as connection:
                await expire_hold(connection, self.id)
        except (DatabaseError, PoolTimeout) as error:
            logger.error("hold %s left to expire: %s", self.id, type(error).__name__)


def on_disconnect(disconnected: asyncio.Task[None], prediction: Prediction, tasks: set[asyncio.Task[None]]) -> None:
    """Cancel the prediction on the replica as soon as the client hangs up, even if no event is flowing."""

    def start(task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            cancelling = asyncio.create_task(prediction.cancel())
            tasks.add(cancelling)
            cancelling.add_done_callback(tasks.discard)

    disconnected.add_done_callback(start)


def charged_usage(usage: dict[str, Any], settlement: Settlement | None) -> dict[str, Any]:
    """OpenAI's usage object plus the charge: nano-dollars exactly, dollars for reading."""
    if settlement is None:
        return usage
    return usage | {"cost_nano_usd": settlement.cost, "cost": settlement.cost / 1e9}


def describe(prediction: Prediction, settlement: Settlement | None) -> dict[str, Any]:
    """Return the `intarsia` object at the end of an answer."""
    return {
        "prediction_id": str(prediction.id),
        "receipt_id": str(prediction.id),
        "settled": settlement is not None,
    }


async def _refusal(response: aiohttp.ClientResponse) -> Refusal:
    """Return the replica's refusal in its own words; anything unexpected is a 502 without its text."""
    headers = {"retry-after": value} if (value := response.headers.get("retry-after")) else {}
    try:
        error = decode(await collect_stream(response.content.iter_any()), OpenAIErrorAnswer).error
    except (aiohttp.ClientError, TimeoutError, ProtocolError):
        return replica_failed("The replica failed. Nothing was charged; try again.")
    finally:
        response.release()
    if error.code == "adapter_revoked":
        return revoked("This model was withdrawn.")
    if response.status == 401:  # our ticket, so our fault: never the client's
        logger.error("a replica refused our ticket: %s", error.message)
        return replica_failed("The replica refused the request. Nothing was charged.")
    return ReplicaRefusal(error, status=response.status, headers=headers)
