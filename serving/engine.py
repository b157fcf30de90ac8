"""The engine: one thread that owns torch, the planner and the adapters, and everything others may ask of it.

Each turn: take what arrived, settle adapters, plan, run, commit, hand results over. Public methods may be called from
any thread; `submit` needs a running event loop, which receives the results.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

import torch

from serving.adapters.manager import AdapterManager
from serving.core import (
    AdapterRef,
    AdapterRevoked,
    Chunk,
    DeadlineExceeded,
    Delta,
    EngineError,
    EngineStopped,
    NonFiniteOutput,
    OutputText,
    PromptTooLong,
    QueueFull,
    Request,
    SampledToken,
    SamplingParams,
    Sequence,
    StepFailed,
    StepPlan,
)
from serving.handle import Outbox, RequestHandle
from serving.runner import Runner
from serving.scheduler.planner import Planner
from serving.stats import EngineStats

T = TypeVar("T")
log = logging.getLogger(__name__)

# How long an idle engine sleeps between looks at deadlines; work wakes it at once.
_IDLE_SECONDS = 0.2


class Engine:
    """Continuous batching over one base model. `start` before `submit`; `stop` joins the thread and zeroes adapters.

    make_output: builds the detokenizer of one request
    eos_token_ids: tokens that end a completion unless it ignores them
    """

    def __init__(
        self,
        runner: Runner,
        planner: Planner,
        adapters: AdapterManager,
        *,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        make_output: Callable[[Request], OutputText],
        threads: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner, self.planner, self.adapters = runner, planner, adapters
        self.max_model_len, self.eos_token_ids = max_model_len, eos_token_ids
        self.stats = EngineStats(kv_blocks_total=planner.pool.num_blocks - 1)
        self.ready = threading.Event()
        self._make_output, self._threads, self._clock = make_output, threads, clock
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        adapters.on_arrival = self._wake.set
        self._active: dict[str, tuple[Sequence, RequestHandle | None]] = {}
        self._outbox = Outbox()
        self._draining = self._stopping = False
        self._queued = 0  # submitted and not yet drained from the inbox
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- asked from any thread --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread; `ready` is set after a warm-up step."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the engine thread runs."""
        return self._thread.is_alive()

    @property
    def accepting(self) -> bool:
        """Warm, running and not draining."""
        return self.alive and self.ready.is_set() and not self._draining

    @property
    def vocab_size(self) -> int:
        return self.runner.model.config.vocab_size

    def submit(self, request: Request) -> RequestHandle:
        """Queues a request. Raises EngineStopped, AdapterRevoked, PromptTooLong or QueueFull, before anything is
        held."""
        if self._draining or not self.alive:
            raise EngineStopped("this replica is shutting down")
        if self.adapters.is_revoked(request.adapter.digest):
            raise AdapterRevoked("this model was revoked")
        self._check_length(request)
        with self._lock:
            waiting = self._queued + len(self.planner.waiting)
            if waiting >= self.planner.limits.max_queue:
                raise QueueFull(f"{waiting} requests are waiting", self.stats.retry_after(waiting, self._clock()))
            self._queued += 1
        handle = RequestHandle(request.request_id, asyncio.get_running_loop())
        self._post(lambda: self._accept(request, handle))
        return handle

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step; its stream closes with finish_reason "cancelled". Unknown ids are
        ignored."""
        self._post(lambda: self._cancel(request_id))

    def revoke(self, digest: str) -> Future[int]:
        """Refuses the adapter, aborts its requests, zeroes its pages and KV. Resolves to the number aborted, when
        done."""
        return self._call(lambda: self._revoke(digest))

    def readmit(self, digest: str) -> Future[None]:
        """Lifts a revocation (a new lease was granted)."""
        return self._call(lambda: self.adapters.readmit(digest))

    def drain(self) -> None:
        """Refuses new requests; running and waiting ones finish."""
        self._draining = True

    def stop(self, grace: float = 0.0) -> None:
        """Drains for up to `grace` seconds, fails what is left with EngineStopped, joins the thread. Idempotent."""
        self.drain()
        limit = self._clock() + grace
        while self._active and self._thread.is_alive() and self._clock() < limit:
            time.sleep(0.02)
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    # -- the engine thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                self._warm_up()
                self.ready.set()
                while not self._stopping:
                    self._wake.clear()
                    if not self.step():
                        self._wake.wait(_IDLE_SECONDS)
        finally:
            self._draining = True
            self._fail(
                [sequence for sequence, _ in self._active.values()], EngineStopped("this replica is shutting down")
            )
            self._outbox.flush()
            self.adapters.close()

    def step(self) -> bool:
        """One turn. Returns whether anything was computed."""
        while self._inbox:
            self._inbox.popleft()()
        return self._turn()

    def _turn(self) -> bool:
        for digest, error in self.adapters.poll():
            self._fail([s for s in self.planner.waiting if s.digest == digest], error)
        plan = self.planner.plan(self._clock())
        self._fail(plan.expired, DeadlineExceeded("the request's deadline passed"))
        for digest in plan.wanted:
            self.adapters.require(digest)
        if plan.chunks:
            began = time.perf_counter()
            try:
                sampled = self.runner.execute(plan)
            except Exception:
                log.exception("a step failed")
                self._fail(
                    [chunk.sequence for chunk in plan.chunks], StepFailed("the model failed to compute this request")
                )
            else:
                self._commit(plan, sampled)
                self.stats.record_step(plan, len(sampled), time.perf_counter() - began)
        self.stats.observe(self.planner)
        self._outbox.flush()
        return bool(plan.chunks)

    def _commit(self, plan: StepPlan, sampled: Iterable[SampledToken]) -> None:
        """Records what a step computed: KV, one new token for each sampling chunk, and who is finished by it."""
        tokens = iter(sampled)
        for chunk in plan.chunks:
            samples = chunk.samples
            self.planner.commit(chunk)
            if samples:
                self._append(chunk, next(tokens))

    def _append(self, chunk: Chunk, sampled: SampledToken) -> None:
        sequence, request = chunk.sequence, chunk.sequence.request
        if sampled.embedding is not None:
            self._deliver(sequence, Delta("", (), (), "stop", sequence.usage(), sampled.embedding))
            self._finish(sequence)
            return
        if sampled.token_id is None:
            self._fail([sequence], sampled.error or NonFiniteOutput("the model's output is not finite"))
            if sampled.error is None and sequence.digest is not None:
                self.runner.zero(self.planner.drop_prefixes(sequence.digest))
            return
        sequence.tokens.append(sampled.token_id)
        ended = sampled.token_id in self.eos_token_ids and not request.sampling.ignore_eos
        text = "" if ended else sequence.output.push(sampled.token_id)
        reason = "stop" if ended or sequence.output.stopped else None
        if reason is None and sequence.output_tokens >= request.max_tokens:
            reason = "length"
        if reason is not None:
            text += sequence.output.finish()
            reason = "stop" if sequence.output.stopped else reason
        logprobs = () if sampled.logprob is None else (sampled.logprob,)
        self._deliver(sequence, Delta(text, (sampled.token_id,), logprobs, reason, sequence.usage()))
        if reason is not None:
            self._finish(sequence)

    # -- what the inbox asks for ------------------------------------------------------------------------------------

    def _accept(self, request: Request, handle: RequestHandle | None) -> None:
        seed = request.sampling.seed
        sequence = Sequence(
            request,
            self._clock(),
            list(request.prompt_token_ids),
            self._make_output(request),
            random.Random(secrets.randbits(64) if seed is None else seed),
        )
        if handle is not None:
            with self._lock:
                self._queued -= 1
            if request.request_id in self._active:
                self._outbox.put(handle, EngineError(f"request id {request.request_id} is in use"))
                return
        self._active[request.request_id] = (sequence, handle)
        self.planner.add(sequence)
        if self.adapters.is_revoked(sequence.digest):  # revoked between submit and now
            self._fail([sequence], AdapterRevoked("this model was revoked"))

    def _cancel(self, request_id: str) -> None:
        if request_id in self._active:
            sequence, _ = self._active[request_id]
            self._deliver(sequence, Delta("", (), (), "cancelled", sequence.usage()))
            self._finish(sequence)

    def _revoke(self, digest: str) -> int:
        self.adapters.revoke(digest)
        doomed = [sequence for sequence, _ in self._active.values() if sequence.digest == digest]
        blocks = [block for sequence in doomed for block in sequence.blocks]
        self._fail(doomed, AdapterRevoked("this model was revoked"))
        self.runner.zero({*blocks, *self.planner.drop_prefixes(digest)})
        return len(doomed)

    # -- shared by all of them --------------------------------------------------------------------------------------

    def _fail(self, sequences: list[Sequence], error: EngineError) -> None:
        for sequence in sequences:
            self.stats.failed += 1
            self._deliver(sequence, error)
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self.planner.finish(sequence)
        del self._active[sequence.request.request_id]
        self.stats.record_finish(self._clock())

    def _deliver(self, sequence: Sequence, item: Delta | EngineError) -> None:
        _, handle = self._active[sequence.request.request_id]
        if handle is not None:
            self._outbox.put(handle, item)

    def _check_length(self, request: Request) -> None:
        asked = len(request.prompt_token_ids) + request.max_tokens
        if asked > self.max_model_len:
            raise PromptTooLong(
                f"This model's maximum context length is {self.max_model_len} tokens, but {asked} were requested "
                f"({len(request.prompt_token_ids)} in the prompt, {request.max_tokens} in the completion)."
            )

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        self._wake.set()

    def _call(self, action: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        self._post(run)
        return future

    def _warm_up(self) -> None:
        """A prefill and two decodes of the base: thread pools, allocator and kernels are then as they will be under
        load."""
        size = min(32, self.max_model_len - 2)
        request = Request(
            "warm-up", "", "warm-up", AdapterRef(), (0,) * size, SamplingParams(temperature=0, ignore_eos=True), 2
        )
        self._accept(request, None)
        while self._active:
            self._turn()  # what arrives meanwhile stays in the inbox
        self.planner.pool.drop(None)
        self.stats = EngineStats(kv_blocks_total=self.planner.pool.num_blocks - 1)
