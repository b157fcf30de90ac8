"""The step loop and the engine's public methods. They may be called from any thread; `submit` needs a running event
loop, which receives the results."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import torch

from serving.core import OutputText, Request, Sequence, Status
from serving.engine import warm_up
from serving.engine.active import ActiveRequests
from serving.engine.beams import check_fits
from serving.engine.inbox import Inbox
from serving.engine.launched import FailedStep, Launched
from serving.engine.sharing import SharedMemory
from serving.errors import AdapterRevoked, DeadlineExceeded, EngineStopped, PromptTooLong, StepFailed
from serving.handle import RequestHandle
from serving.ports import Adapters, Runner
from serving.scheduler.admission import Admission
from serving.scheduler.planner import Planner
from serving.stats import EngineStats
from serving.steps import SampledToken, StepPlan
from serving.trace import NO_TRACE, Tracer

log = logging.getLogger(__name__)

# How long an idle engine sleeps between two checks of deadlines; work wakes it at once.
_IDLE_SECONDS = 0.2
# How old gauges and the forecast of admission may be while no request arrives or ends. Renewing them takes a sixth of
# the Python time of a step with one row.
_POLL_SECONDS = 0.05


class Engine:
    """Continuous batching over one base model. `start` before `submit`; `stop` joins the thread and zeroes adapters.

    make_output: builds the detokenizer of one request
    eos_token_ids: tokens that end a completion unless it ignores them
    sharing: moves memory between adapters and KV; None: each has its own
    trace: receives the times of each step's parts
    """

    trace: Tracer = NO_TRACE

    def __init__(
        self,
        runner: Runner,
        planner: Planner,
        adapters: Adapters,
        *,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        make_output: Callable[[Request], OutputText],
        threads: int = 0,
        sharing: SharedMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner, self.planner, self.adapters = runner, planner, adapters
        self.max_model_len = max_model_len
        self.stats = EngineStats(kv_blocks_total=planner.pool.limit)
        self.admission = Admission(planner.limits, planner.costs, planner.restores.outlook)
        self.ready = threading.Event()
        self._threads, self._sharing, self._clock = threads, sharing, clock
        self._least_blocks = planner.pool.limit if sharing is None else sharing.least_kv_blocks
        self._step_seconds = 0.0
        self._inbox = Inbox()
        adapters.on_arrival = planner.restores.tiers.on_arrival = self._inbox.wake
        self._active = ActiveRequests(make_output, eos_token_ids, self._finished, planner.tables)
        self._launched: deque[Launched] = deque()
        self._committed_at = self._next_poll_at = 0.0
        self._draining = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- from any thread --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; `ready` is set after a warm-up request."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the engine thread runs."""
        return self._thread.is_alive()

    @property
    def accepting(self) -> bool:
        """Whether the engine is warm, running and not draining."""
        return self.alive and self.ready.is_set() and not self._draining

    @property
    def draining(self) -> bool:
        """Whether new requests are refused while running ones finish."""
        return self._draining

    @property
    def vocab_size(self) -> int:
        return self.runner.vocab_size

    def submit(self, request: Request, *, continues: bool = False) -> RequestHandle:
        """Queue a request. Raises EngineStopped, AdapterRevoked, PromptTooLong, BeamsTooWide or QueueFull.

        continues: whether it is part of an HTTP request that runs already, so that draining does not refuse it
        """
        if (self._draining and not continues) or self._stopping or not self.alive:
            raise EngineStopped("this replica is shutting down")
        if self.adapters.is_revoked(request.adapter.digest):
            raise AdapterRevoked("this model was revoked")
        self.check_length(request)
        cost = self.adapters.cost(request.adapter.digest)
        self.admission.admit(request, self._clock(), cost.seconds, cost.rank)
        handle = RequestHandle(request.request_id, asyncio.get_running_loop())
        self._inbox.post(lambda: self.accept(request, handle))
        return handle

    def check_length(self, request: Request) -> None:
        """Raise PromptTooLong unless prompt and completion fit the context, BeamsTooWide unless all beams fit."""
        asked = len(request.prompt_token_ids) + request.max_tokens
        if asked > self.max_model_len:
            raise PromptTooLong(
                f"This model's maximum context length is {self.max_model_len} tokens, but {asked} were requested "
                f"({len(request.prompt_token_ids)} in the prompt, {request.max_tokens} in the completion)."
            )
        check_fits(request, self.planner.limits, self._least_blocks, self.planner.pool.block_size)

    def cancel(self, request_id: str) -> None:
        """End a request, or all of a family, with finish_reason "cancelled"; unknown ids are ignored."""
        self._inbox.post(lambda: self._active.cancel(request_id))

    def revoke(self, digest: str) -> Future[int]:
        """Refuse the adapter, abort its requests, zero its pages and KV. Resolves to the number of requests aborted."""
        return self._inbox.call(lambda: self._revoke(digest))

    def forget(self, scope: str) -> Future[int]:
        """Forget the KV and the answers of a cache scope, on every level. Resolves to the number of blocks zeroed."""
        return self._inbox.call(lambda: self._forget(scope))

    def readmit(self, digest: str) -> Future[None]:
        """Lift a revocation (a new lease was granted)."""
        return self._inbox.call(lambda: self.adapters.readmit(digest))

    def drain(self) -> None:
        """Refuse new requests; running and waiting requests finish."""
        self._draining = True

    def stop(self, grace: float = 0.0) -> None:
        """Drain for up to `grace` seconds, fail remaining requests with EngineStopped, join the thread. Idempotent."""
        self.drain()
        limit = self._clock() + grace
        while self._active and self._thread.is_alive() and self._clock() < limit:
            time.sleep(0.02)
        self._stopping = True
        self._inbox.wake()
        if self._thread.is_alive():
            self._thread.join()

    # -- the engine thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                self.warm_up()
                self.ready.set()
                while not self._stopping:
                    self._inbox.drain()
                    with self.adapters.gate.closed():
                        busy = self.step()
                    if not busy:
                        self._inbox.wait(_IDLE_SECONDS)
                    elif self.adapters.gate.load_pause and self.adapters.loading:
                        with self.trace.span("load pause"):
                            self.adapters.gate.let_loads_run(self._step_seconds)
                self._commit_launched(0)
        finally:
            self._draining = self._stopping = True
            self._inbox.drain()  # requests submitted a moment ago must fail too
            self._active.fail(self._active.sequences(), EngineStopped("this replica is shutting down"))
            self._active.flush()
            self.planner.restores.tiers.close()
            self.adapters.close()
            self.trace.close()

    def step(self) -> bool:
        """Run one turn. Where the runner overlaps, the host plans one step and commits the previous one while the
        device computes. Returns whether anything was done."""
        span = self.trace.span
        self._catch_up()
        with span("plan"):
            for digest, error in self.adapters.poll():
                self._active.fail([s for s in self.planner.waiting if s.digest == digest], error)
            plan = self.planner.plan(self._clock())
            self._act_on(plan)
        if plan.chunks:
            with span("launch", rows=plan.rows, sequences=len(plan.chunks), adapters=len(plan.shape.adapters)):
                self._launched.append(self._launch(plan))
        busy = bool(self._launched or plan.expired)
        with span("commit"):
            self._commit_launched(self.runner.depth if plan.chunks else 0)
        with span("deliver"):
            self._report()
        return busy

    def _catch_up(self) -> None:
        """Commit the step in flight where the next one begins at its tokens: behind drafts, or to draft behind them."""
        drafts = self.planner.drafts
        if self._launched and (self._launched[-1].plan.drafts or drafts.expects(self.planner.running)):
            self._commit_launched(0)

    def _act_on(self, plan: StepPlan) -> None:
        """Fail expired requests and start the wanted loads."""
        self._active.fail(plan.expired, DeadlineExceeded("the request's deadline passed"))
        self.adapters.want(plan.wanted)

    def _launch(self, plan: StepPlan) -> Launched:
        began = self._clock()
        try:
            return Launched(plan, self.runner.launch(plan), began)
        except Exception as error:
            return Launched(plan, FailedStep(error), began)

    def _commit_launched(self, keep: int) -> None:
        """Commit launched steps, oldest first, until `keep` are left in flight."""
        while len(self._launched) > keep:
            self._commit(self._launched.popleft())

    def _commit(self, launched: Launched) -> None:
        """Record what a step computed: KV, one token per sampling chunk, and the requests that it ends."""
        plan = launched.plan
        try:
            sampled = launched.step.result()
        except Exception:
            log.exception("a step failed")
            failure = StepFailed("the model failed to compute this request")
            self._active.fail([chunk.sequence for chunk in plan.chunks], failure)
            return
        now, tokens = self._clock(), iter(sampled)
        for chunk in plan.chunks:
            token = next(tokens) if chunk.samples else None
            chunk.sequence.steps += 1
            if self.planner.commit(chunk, now, len(token.before) if token else 0) and token is not None:
                self._append_all(chunk.sequence, token)
        ended = self._clock()
        self._step_seconds = seconds = ended - max(launched.began, self._committed_at)
        self._committed_at = ended
        self.planner.costs.observe(plan.shape, seconds)
        self.stats.record_step(plan, sum(1 + len(token.before) for token in sampled), seconds)

    def _append_all(self, sequence: Sequence, sampled: SampledToken) -> None:
        """Append the tokens of a draft that the model chose, and the one behind them, up to the completion's end."""
        for token in sampled.before:
            sequence.accepted += 1
            self._append(sequence, token)
            if sequence.status is Status.FINISHED:
                break
        else:
            self._append(sequence, sampled)
        if sequence.status is Status.FINISHED and sampled.token_id is not None and sequence.group is None:
            self.planner.drafts.drafter.learn(sequence, self._clock())

    def _append(self, sequence: Sequence, sampled: SampledToken) -> None:
        self._active.append(sequence, sampled)
        not_finite = sampled.token_id is None and sampled.embedding is None and sampled.error is None
        if not_finite and sequence.digest is not None:  # no later request may find the KV that this adapter wrote
            self.runner.zero(self.planner.drop_prefixes(sequence.digest))

    def _report(self) -> None:
        now = self._clock()
        if now >= self._next_poll_at:
            self._next_poll_at = now + _POLL_SECONDS
            if self._sharing is not None:
                self._sharing.update(now)
            self.planner.drafts.drafter.expire(now)
            self.stats.observe(self.planner)
            self.admission.update(self.planner)
        self._active.flush()

    # -- actions from the inbox -------------------------------------------------------------------------------------

    def accept(self, request: Request, handle: RequestHandle | None) -> None:
        """Queue a request that was admitted, in the thread that calls `step`. handle: None: no one reads its deltas"""
        self.admission.arrived(request)
        now, self._next_poll_at = self._clock(), 0.0
        sequence = self._active.open(request, handle, now)
        if sequence is not None:
            self.adapters.expect(request.adapter)
            self.planner.add(sequence)
            if self.adapters.is_revoked(sequence.digest):  # revoked between submit and now
                self._active.fail([sequence], AdapterRevoked("this model was revoked"))

    def _revoke(self, digest: str) -> int:
        self._commit_launched(0)
        dead = self.adapters.revoke(digest)  # the adapter and every blend with it
        doomed = [sequence for sequence in self._active.sequences() if sequence.digest in dead]
        blocks = {block for sequence in doomed for member in sequence.members for block in member.blocks}
        self._active.fail(doomed, AdapterRevoked("this model was revoked"))
        for gone in dead:
            blocks.update(self.planner.drop_prefixes(gone))
        self.runner.zero(blocks)
        return len(doomed)

    def _forget(self, scope: str) -> int:
        self._commit_launched(0)
        blocks = self.planner.drop_scope(scope)
        self.runner.zero(blocks)
        return len(blocks)

    def _finished(self, sequence: Sequence, failed: bool) -> None:
        self._next_poll_at = 0.0
        self.planner.finish(sequence)
        self.adapters.forget(sequence.request.adapter)
        self.admission.finished(sequence.output_tokens, sequence.request.max_tokens)
        self.stats.record_finish(failed)

    def warm_up(self) -> None:
        """Run requests of the base, so that thread pools, allocator and kernels are warm. Where launches are compiled
        for each way of sampling, there is a request for each."""
        for together in warm_up.requests(self.max_model_len, self.vocab_size, samples=self.runner.depth > 0):
            for request in together:
                self.accept(request, None)
            while self._active:
                self.step()  # requests that arrive meanwhile stay in the inbox
        self.planner.pool.drop(None)
        self.stats = EngineStats(kv_blocks_total=self.planner.pool.limit)
