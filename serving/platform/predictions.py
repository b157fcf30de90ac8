"""The platform's implementation of serving.http.admission: ticket in, receipt out."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from protocol.journal import Progress
from protocol.latency import LatencyClass
from protocol.messages import PredictionExtra, to_fields
from protocol.pulls import PULL_HEADER, PullTicket, Role
from protocol.receipts import FinishReason
from protocol.tickets import TICKET_HEADER, Ticket
from serving.core import AdapterRef, Request, Usage
from serving.engine import Engine
from serving.http.admission import UNKNOWN, Admission, Ending, IncomingRequest
from serving.http.errors import ApiError
from serving.platform.errors import TicketRefused, TooManyTickets
from serving.platform.journal import UsageJournal
from serving.platform.kv_reader import KvReader
from serving.platform.leases import LeaseTable
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier

log = logging.getLogger(__name__)

# A stream gets a checkpoint with its first token, and after so many more tokens or seconds.
CHECKPOINT_TOKENS, CHECKPOINT_SECONDS = 16, 0.25
JOURNAL_SECONDS = 10.0  # how long a receipt waits for the disk before the answer goes out without it
# Paths whose prompts may be computed for another replica.
_PREFILLED = frozenset({"/v1/completions", "/v1/chat/completions"})
# Finish reasons that become an error status before the first token; the client then owes nothing.
_REFUSALS = frozenset({"error", "revoked", "interrupted"})


@dataclass(slots=True)
class _Running:
    attempt: int
    replica_id: str
    adapter: str | None
    expires: float  # unix seconds
    started: float  # unix seconds
    began: float  # monotonic
    latency_class: LatencyClass
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    first_token: float | None = None
    checkpoint_tokens: int = 0  # of the last checkpoint in its stream
    checkpoint_at: float = 0.0  # monotonic
    delivered: int | None = None  # a cancellation's verdict: at most so many completion tokens reached the client

    def countable(self, tokens: int) -> int:
        """Return how many of these completion tokens the receipt may count."""
        return tokens if self.delivered is None else min(tokens, self.delivered)


class PredictionDesk:
    """Predictions between ticket and receipt. Runs in the server's event loop; `state` is thread-safe."""

    def __init__(
        self,
        engine: Engine,
        tickets: TicketVerifier,
        leases: LeaseTable,
        journal: UsageJournal,
        signer: ReceiptSigner,
        *,
        role: Role = "both",
        reader: KvReader | None = None,
    ) -> None:
        """Start without predictions. role: what it takes; reader: brings the KV of prompts from other replicas."""
        self._engine, self._tickets, self._leases = engine, tickets, leases
        self._journal, self._signer = journal, signer
        self._role, self._reader = role, reader
        self._running: dict[str, _Running] = {}

    # -- serving.http.admission.RequestAuthorizer -------------------------------------------------------------------

    async def authorize(self, request: IncomingRequest) -> Admission:
        """Verify and spend the ticket.

        A replica that computes prompts for others takes tickets for those alone, and no other replica takes them.

        Raises ApiError: 401 invalid_ticket, 403 adapter_revoked, 503.
        """
        action: Literal["predict", "prefill"] = "prefill" if self._role == "prefill" else "predict"
        if not self._journal.accepting:
            raise ApiError(503, "This replica cannot record usage now.", code="journal_unavailable")
        try:
            ticket = self._tickets.verify(request.headers.get(TICKET_HEADER), request.raw_body, action=action)
        except TicketRefused as error:
            raise ApiError(401, str(error), code=error.code) from None
        except TooManyTickets as error:
            raise ApiError(503, str(error), code=error.code, headers={"Retry-After": "5"}) from None
        if ticket.max_prompt_tokens < 1 or not ticket.organization_id or not ticket.cache_scope:
            raise ApiError(401, "the ticket grants no prediction", code="invalid_ticket")
        alone = action == "prefill"
        if alone and (ticket.max_tokens or request.path not in _PREFILLED):
            raise ApiError(401, "the ticket grants more than a prompt", code="invalid_ticket")
        if (digest := ticket.adapter or ticket.contract) is not None:
            await self._readmit(digest)
        now = time.monotonic()
        known = self._remember(ticket, now)
        return Admission(
            request_id=ticket.jti,
            tenant=ticket.organization_id,
            cache_scope=ticket.cache_scope,
            adapter=AdapterRef(ticket.adapter),
            deadline=now + ticket.exp - time.time(),
            max_prompt_tokens=ticket.max_prompt_tokens,
            max_tokens=None if alone else ticket.max_tokens,
            weight=ticket.weight,
            latency_class=ticket.latency_class,
            stop_at_grant=ticket.stop_at_grant,
            teaches=ticket.teaches,
            contract=ticket.contract,
            signs_of_life=True,
            conversation=int(ticket.conversation, 16) if ticket.conversation else None,
            stopped=known.stopped,
            prompt_alone=alone,
            bring=self._brings(ticket, request.headers.get(PULL_HEADER)),
        )

    def _brings(self, ticket: Ticket, token: str | None) -> Callable[[Request], Awaitable[Request]] | None:
        """Return what brings the KV of a prompt that another replica has computed; None for any other prompt."""
        if self._reader is None or ticket.cached_tokens is None or self._role == "prefill":
            return None
        return functools.partial(self._bring, self._reader, ticket, token or "")

    async def _bring(self, reader: KvReader, ticket: Ticket, token: str, request: Request) -> Request:
        """Pull what is of use. As cached count the tokens that one replica, in the place of both, would have found:
        however the pull ends, the bill is the same."""
        brought = await reader.bring(request, self._pull_of(reader, ticket, token), token)
        cached = max(brought.cached_as or 0, ticket.cached_tokens or 0)
        return replace(brought, cached_as=min(cached, len(request.prompt_token_ids)))

    def _pull_of(self, reader: KvReader, ticket: Ticket, token: str) -> PullTicket | None:
        """Return the ticket of a pull, None for one that does not verify or is of another prediction."""
        try:
            pull = self._tickets.verify_pull(token)
        except TicketRefused as error:
            why = str(error)
        else:
            of = (pull.jti, pull.attempt, pull.adapter, pull.cache_scope)
            if of == (ticket.jti, ticket.attempt, ticket.adapter, ticket.cache_scope):
                return pull
            why = "it is of another prediction"
        log.warning("prediction %s: its prompt is computed here: the ticket of its pull: %s", ticket.jti, why)
        reader.outcomes["refused"] += 1
        return None

    async def model_names(self) -> list[str]:
        """Return an empty list: names belong to the platform, and a replica knows only digests."""
        return []

    async def _readmit(self, digest: str) -> None:
        if self._leases.is_revoked(digest):
            raise ApiError(403, "this model was withdrawn", code="adapter_revoked")
        if digest in self._leases.digests() and not self._leases.is_live(digest):
            self._leases.expire()  # the guard thread would do it a moment later; not one more token on a dead lease
        if self._engine.adapters.is_revoked(digest):
            # Dropped because its lease ran out, not because it was withdrawn: the load that follows asks for a new one.
            await asyncio.wrap_future(self._engine.readmit(digest))

    def _remember(self, ticket: Ticket, now: float) -> _Running:
        known = self._running[ticket.jti] = _Running(
            ticket.attempt, ticket.replica_id, ticket.adapter, ticket.exp, time.time(), now, ticket.latency_class
        )
        if len(self._running) % 256 == 0:
            # Requests refused between here and the engine never come to `on_finish`.
            expired = [jti for jti, known in self._running.items() if known.expires + 60 < time.time()]
            for jti in expired:
                del self._running[jti]
        return known

    # -- serving.http.admission.CompletionObserver ------------------------------------------------------------------

    def on_progress(self, request_id: str, usage: Usage) -> None:
        """Checkpoint the usage; the journal batches checkpoints."""
        known = self._running.get(request_id)
        if known is None:
            return
        if known.first_token is None:
            known.first_token = time.monotonic()
        self._journal.progress(
            Progress(
                request_id,
                known.attempt,
                known.replica_id,
                known.adapter,
                usage.prompt_tokens,
                usage.cached_tokens,
                known.countable(usage.completion_tokens),
                known.started,
                known.latency_class,
            )
        )

    def checkpoint(self, request_id: str, usage: Usage, shown: int) -> str | None:
        """Sign a receipt of what a stream has shown, at its first token and then from time to time.

        The platform settles with the last one where this replica is lost: nothing waits for its return.
        """
        known, now = self._running.get(request_id), time.monotonic()
        if known is None or known.countable(shown) <= known.checkpoint_tokens:
            return None
        due = shown - known.checkpoint_tokens >= CHECKPOINT_TOKENS or now - known.checkpoint_at >= CHECKPOINT_SECONDS
        if known.checkpoint_tokens and not due:
            return None
        known.checkpoint_tokens, known.checkpoint_at = known.countable(shown), now
        return self._signer.sign(
            jti=request_id,
            attempt=known.attempt,
            replica_id=known.replica_id,
            signer_id=known.replica_id,
            adapter=known.adapter,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=known.checkpoint_tokens,
            finish_reason="interrupted",
            ttft_ms=None if known.first_token is None else round((known.first_token - known.began) * 1000),
            duration_ms=round((now - known.began) * 1000),
            latency_class=known.latency_class,
        )

    async def on_finish(
        self, request_id: str, usage: Usage, finish_reason: str, ending: Ending = UNKNOWN
    ) -> dict[str, Any] | None:
        """Sign the receipt, wait until it is on the disk, and return it.

        Returns None if no token was delivered (the refusal's status says so), or if the disk is too slow: the platform
        then asks for the receipt later.
        """
        known = self._running.get(request_id)
        if known is None:
            return None
        if usage.completion_tokens == 0 and finish_reason in _REFUSALS:
            self._running.pop(request_id, None)
            self._journal.drop(request_id, known.attempt)
            return None
        duration = round((time.monotonic() - known.began) * 1000)
        queued = None if ending.queue_seconds is None else min(round(ending.queue_seconds * 1000), duration)
        receipt = self._signer.sign(
            jti=request_id,
            attempt=known.attempt,
            replica_id=known.replica_id,
            signer_id=known.replica_id,
            adapter=known.adapter,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=known.countable(usage.completion_tokens),
            finish_reason=cast(FinishReason, finish_reason),
            ttft_ms=None if known.first_token is None else round((known.first_token - known.began) * 1000),
            duration_ms=duration,
            latency_class=known.latency_class,
            answer=ending.answer,
            queue_ms=queued,
            tool_arguments=None if ending.arguments_fit is None else "valid" if ending.arguments_fit else "invalid",
            returned_tokens=usage.returned_tokens,
        )
        durable = asyncio.wrap_future(self._journal.finish(request_id, known.attempt, receipt))
        self._running.pop(request_id, None)
        try:
            await asyncio.wait_for(asyncio.shield(durable), JOURNAL_SECONDS)
        except TimeoutError:
            log.error("the receipt of %s waits for the disk; the answer goes out without it", request_id)
            return None
        return to_fields(PredictionExtra(receipt))

    # -- asked by administration and by the link's thread -----------------------------------------------------------

    def cancel(self, jti: str, attempt: int, delivered_tokens: int) -> None:
        """Stop an attempt, and count at most `delivered_tokens` completion tokens in its receipt. Idempotent.

        An attempt that has not arrived yet is refused when it comes.
        """
        known = self._running.get(jti)
        if known is None:
            self._tickets.void(jti)
        elif known.attempt == attempt:
            known.delivered = known.countable(delivered_tokens)
            known.stopped.set()
            self._engine.cancel(jti)

    def state(self, jti: str, attempt: int) -> tuple[Literal["unknown", "running", "final"], str | None]:
        """Return the state of an attempt, as /admin/journal answers."""
        state, receipt = self._journal.lookup(jti, attempt)
        known = self._running.get(jti)
        if state == "unknown" and known is not None and known.attempt == attempt and known.expires > time.time():
            return "running", None  # admitted, no token yet
        return state, receipt

    def settle_interrupted(self, replica_id: str) -> None:
        """Sign receipts, as the boot `replica_id`, for attempts that an earlier process left unfinished.

        Each receipt keeps the attempt and the replica id of its ticket, and counts the tokens of the last checkpoint.
        """
        for progress in self._journal.interrupted():
            receipt = self._signer.sign(
                jti=progress.jti,
                attempt=progress.attempt,
                replica_id=progress.replica_id,
                signer_id=replica_id,
                adapter=progress.adapter,
                prompt_tokens=progress.prompt_tokens,
                cached_tokens=progress.cached_tokens,
                completion_tokens=progress.completion_tokens,
                finish_reason="interrupted",
                ttft_ms=None,
                duration_ms=0,
                latency_class=progress.latency_class,
            )
            self._journal.finish(progress.jti, progress.attempt, receipt)
