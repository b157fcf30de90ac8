"""Admission refuses at once what cannot be served in time: by queue limits and by deadlines that the predicted wait
exceeds.

The threads that receive requests admit them against an `Outlook`. The engine thread renews it at the end of a step in
which a request arrived or finished, and otherwise at most every 50 ms. The prediction is a function of values;
`Admission` only keeps the latest ones.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from serving.core import AdapterRef, LatencyClass, Request, SamplingParams
from serving.errors import QueueFull
from serving.scheduler.cost_model import CostModel
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from serving.steps import StepShape

_SHORTEST_RETRY, _LONGEST_RETRY = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Waiting requests of one tenant in one class, and the prompt tokens they bring."""

    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """The work there is at one moment.

    decodes: the running decodes
    seconds: the duration of a step of the running decodes alone
    slack: the longest step, in seconds, that keeps the decodes within their targets
    prefill_tokens: prompt tokens of running sequences that are still to be computed
    remaining: output tokens that each running sequence may still produce, ascending
    used_share: the share of max_tokens that recently finished requests produced
    waiting: by class and tenant
    """

    free_seats: int = 1
    free_tokens: int = 1 << 30
    decodes: StepShape = field(default_factory=StepShape)
    seconds: float = 0.0
    slack: float = float("inf")
    prefill_tokens: int = 0
    remaining: tuple[int, ...] = ()
    used_share: float = 1.0
    waiting: Mapping[LatencyClass, Mapping[str, Backlog]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds until a request's first token, by cause. Waiting and loading overlap."""

    queue: float
    load: float
    prefill: float

    @property
    def first_token(self) -> float:
        return max(self.queue, self.load) + self.prefill


def predict(
    outlook: Outlook,
    costs: CostModel,
    limits: Limits,
    request: Request,
    load_seconds: float,
    rank: int,
    cached_tokens: int = 0,
) -> Prediction:
    """Predict the time to first token of a request that arrives now.

    load_seconds: until its adapter, and the KV of its `cached_tokens`, are there
    """
    ahead = _ahead(outlook, request)
    tokens = ahead.tokens + outlook.prefill_tokens
    rows = limits.max_batched_tokens
    if outlook.slack != float("inf"):
        rows = costs.prefill_rows_within(outlook.decodes, outlook.slack, 0, None, 0)
        rows = min(max(rows, limits.min_prefill_tokens, outlook.decodes.decode_rows), limits.max_batched_tokens)
    per_token = (outlook.seconds + costs.prefill_seconds(rows, rank, rows)) / rows
    own = len(request.prompt_token_ids)
    queue = max(tokens * per_token, _seat_seconds(outlook, ahead, own))
    return Prediction(queue=queue, load=load_seconds, prefill=(own - cached_tokens) * per_token)


def _ahead(outlook: Outlook, request: Request) -> Backlog:
    """Return the work that is served before the request: better classes, and in its own class, by fair shares, as many
    requests of each other tenant as of its own."""
    requests = tokens = 0
    for latency_class, tenants in outlook.waiting.items():
        if latency_class.value > request.latency_class.value:
            continue
        own = tenants.get(request.tenant, Backlog(0, 0)).requests
        for tenant, backlog in tenants.items():
            count = backlog.requests
            if latency_class is request.latency_class and tenant != request.tenant:
                count = min(count, own + 1)
            requests += count
            tokens += backlog.tokens * count // backlog.requests
    return Backlog(requests, tokens)


def _seat_seconds(outlook: Outlook, ahead: Backlog, own: int) -> float:
    """Return the seconds until enough running sequences have finished for those ahead and the request to have seats."""
    mean = (ahead.tokens + own) // (ahead.requests + 1) + 1
    free = min(outlook.free_seats, outlook.free_tokens // mean)
    missing = ahead.requests + 1 - free
    if missing <= 0 or not outlook.remaining:
        return 0.0
    rounds, rest = divmod(missing - 1, len(outlook.remaining))
    steps = (outlook.remaining[rest] + rounds * outlook.remaining[-1]) * outlook.used_share
    return steps * outlook.seconds


class Admission:
    """Thread-safe. The engine thread calls `update`, `arrived` and `finished`; other threads call `admit`.

    cached: how many tokens of a request's prompt need no computing, and the seconds until their KV is restored
    """

    def __init__(
        self,
        limits: Limits,
        costs: CostModel,
        cached: Callable[[Request], tuple[int, float]] = lambda request: (0, 0.0),
    ) -> None:
        self._limits, self._costs, self._cached = limits, costs, cached
        self._lock = threading.Lock()
        self._outlook = Outlook()
        self._submitted: dict[str, Request] = {}  # admitted and not yet in the outlook
        self._arrived: list[str] = []
        self._share = 1.0
        self.refused: Counter[str] = Counter()

    def admit(self, request: Request, now: float, load_seconds: float, rank: int) -> Prediction:
        """Admit a request, which then counts as waiting. Raises QueueFull with a time to retry after."""
        with self._lock:
            outlook = self._with_submitted()
            prediction = predict(outlook, self._costs, self._limits, request, load_seconds, rank)
            backlogs = [tenants for tenants in outlook.waiting.values()]
            waiting = sum(b.requests for tenants in backlogs for b in tenants.values())
            own = sum(tenants[request.tenant].requests for tenants in backlogs if request.tenant in tenants)
            if waiting >= self._limits.max_queue:
                raise self._refusal("queue_full", f"{waiting} requests are waiting", prediction.queue / 2)
            if self._limits.max_tenant_queue and own >= self._limits.max_tenant_queue:
                raise self._refusal("tenant_queue_full", f"{own} of your requests are waiting", prediction.queue / 2)
            if request.deadline is not None and now + prediction.first_token > request.deadline:
                # Spilled KV may save it: looked for only now, since it takes a hash for each block of the prompt.
                tokens, seconds = self._cached(request)
                load = max(load_seconds, seconds)
                prediction = predict(outlook, self._costs, self._limits, request, load, rank, tokens)
            if request.deadline is not None and now + prediction.first_token > request.deadline:
                late = now + prediction.first_token - request.deadline
                raise self._refusal(
                    "deadline_unmeetable", f"the first token would come {late:.1f} s after the deadline", late
                )
            self._submitted[request.request_id] = request
            return prediction

    def waits(self) -> tuple[float, float, float]:
        """Return the predicted seconds until a sequence starts that arrives now, by class: of a tenant without any
        other."""
        with self._lock:
            outlook = self._with_submitted()
        interactive, standard, batch = (
            predict(outlook, self._costs, self._limits, _of_class(one), 0.0, 0).queue for one in LatencyClass
        )
        return interactive, standard, batch

    def arrived(self, request: Request) -> None:
        """Note that the engine has queued or refused the request: the next outlook includes it."""
        self._arrived.append(request.request_id)

    def finished(self, output_tokens: int, max_tokens: int) -> None:
        """Learn the share of max_tokens that requests produce."""
        if max_tokens > 0:
            self._share += 0.05 * (output_tokens / max_tokens - self._share)

    def update(self, planner: Planner) -> None:
        """Renew the outlook from the planner's state."""
        outlook = observe(planner, self._share)
        with self._lock:
            self._outlook = outlook
            for request_id in self._arrived:
                self._submitted.pop(request_id, None)
        self._arrived.clear()

    def _refusal(self, code: str, message: str, retry_after: float) -> QueueFull:
        self.refused[code] += 1
        return QueueFull(message, min(max(retry_after, _SHORTEST_RETRY), _LONGEST_RETRY), code)

    def _with_submitted(self) -> Outlook:
        if not self._submitted:
            return self._outlook
        outlook = self._outlook
        waiting = {c: dict(tenants) for c, tenants in outlook.waiting.items()}
        for request in self._submitted.values():
            _add(waiting, request, len(request.prompt_token_ids))
        return replace(outlook, waiting=waiting)


def observe(planner: Planner, used_share: float = 1.0) -> Outlook:
    """Return the planner's state as admission sees it."""
    decodes, slack, prefill, remaining = StepShape(), float("inf"), 0, []
    for sequence in planner.running:
        remaining.append(max(1, sequence.request.max_tokens - sequence.output_tokens))
        if sequence.pending > 1:
            prefill += sequence.pending
        else:
            for member in sequence.members:
                decodes.add_decode(member.length, member.digest, planner.accounts.rank(member.digest))
            slack = min(slack, planner.targets.of(sequence).itl)
    counts: dict[tuple[LatencyClass, str], list[int]] = {}
    for sequence in planner.waiting:
        count = counts.setdefault((sequence.request.latency_class, sequence.request.tenant), [0, 0])
        count[0] += 1
        count[1] += len(sequence.tokens)
    waiting: dict[LatencyClass, dict[str, Backlog]] = {}
    for (latency_class, tenant), (requests, tokens) in counts.items():
        waiting.setdefault(latency_class, {})[tenant] = Backlog(requests, tokens)
    return Outlook(
        free_seats=planner.limits.max_num_seqs - planner.seats,
        free_tokens=planner.pool.available * planner.pool.block_size,
        decodes=decodes,
        seconds=planner.costs.predict(decodes),
        slack=slack,
        prefill_tokens=prefill,
        remaining=tuple(sorted(remaining)),
        used_share=used_share,
        waiting=waiting,
    )


def _add(waiting: dict[LatencyClass, dict[str, Backlog]], request: Request, tokens: int) -> None:
    tenants = waiting.setdefault(request.latency_class, {})
    old = tenants.get(request.tenant, Backlog(0, 0))
    tenants[request.tenant] = Backlog(old.requests + 1, old.tokens + tokens)


def _of_class(latency_class: LatencyClass) -> Request:
    """Return the shortest request of a class, of nobody."""
    return Request("", "", "", AdapterRef(), (0,), SamplingParams(), 1, latency_class=latency_class)
