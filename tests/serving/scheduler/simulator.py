"""Random lives of a simulated replica (`serving.simulation`): the planner, pool, queues, accounts and admission that
production runs, with steps that take what a hidden cost model says (plus noise and absurd outliers). One seed is one
trace, the same on every machine.

After every step the integrity of planner and pool is checked; `Trace.run` raises AssertionError when anything that the
scheduler promises does not hold: see `_check_*`.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, replace

from serving.core import AdapterRef, LatencyClass, Request, SamplingParams, Sequence, Status
from serving.kv.pool import BlockPool
from serving.kv.tiers import Tiers
from serving.scheduler.admission import Outlook, observe, predict
from serving.scheduler.cost_model import DEFAULTS, CostModel
from serving.scheduler.fairness import Prices
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from serving.scheduler.slo import Target, Targets
from serving.simulation import Script, SimulatedReplica, SimulatedResidency
from serving.simulation.replica import IDLE_SECONDS
from serving.steps import Chunk, StepPlan
from tests.serving.scheduler.guesses import Guesses
from tests.serving.scheduler.outcome import Outcome
from tests.serving.scheduler.simulated_store import KeyCopies, draw_stores

GREEDY = SamplingParams(temperature=0)
MAX_STEPS = 20_000
LOAD_SECONDS = 0.15
RANKS = (4, 8, 16, 64)
_CLASSES = tuple(LatencyClass)


@dataclass(slots=True)
class _Wait:
    """An aged sequence that could start: how much service everybody had had, and how far the counters were apart."""

    service: float
    gap: float


class Trace(Script):
    """One simulated life of a replica, drawn from `seed`. kind: mixed (everything at once), fair (one class, tenants
    that always have work), flood (the first class asks for more than there is). levels: with memory levels below the
    KV pool; None: in every second trace. let_in: share of refused requests that are let in to see."""

    def __init__(self, seed: int, kind: str = "mixed", *, levels: bool | None = None, let_in: float = 0.5) -> None:
        self.seed, self.kind, self.let_in = seed, kind, let_in
        self.rng = rng = random.Random(f"{kind}/{seed}")
        self.outcome = Outcome()
        self.level_rng = random.Random(f"levels/{kind}/{seed}")
        depth = rng.randrange(2)
        size = rng.choice((2, 4, 8))
        self.longest = size * rng.randint(3, 8)
        seqs = rng.randint(1, 6)
        budget = max(seqs, rng.randint(4, 40))
        blocks = 2 + self.longest // size + rng.randint(0, 3 * self.longest // size)
        self.residency = SimulatedResidency(
            rng.randint(1, 4),
            rank=lambda digest: RANKS[int(digest[1:]) % 4],
            load_seconds=lambda digest: LOAD_SECONDS * rng.uniform(0.7, 2.0),
            workers=self.level_rng.randint(1, 3),
        )
        speed = 10 ** rng.uniform(-1.5, 0.5)
        self.truth = CostModel(tuple(c * speed * rng.uniform(0.5, 2.0) for c in DEFAULTS))
        limits = Limits(
            budget, seqs, rng.randint(10, 40), rng.choice((0, 10)), rng.randint(1, budget), rng.choice((0, 32))
        )
        caching = rng.random() < 0.7
        pool = BlockPool(blocks, size, caching=caching)
        self.stores = draw_stores(self.level_rng, speed, lambda: self.now, levels) if caching else []
        self.planner = Planner(
            limits,
            pool,
            self.residency,
            "fingerprint",
            targets=Targets(
                Target(1.0 * speed, 0.05 * speed, 0.0),
                Target(3.0 * speed, 0.1 * speed, 4.0 * speed),
                Target(8.0 * speed, 0.5 * speed, 10.0 * speed),
            ),
            drafter=Guesses(rng),
            max_draft_rows=0 if depth else rng.choice((0, 4, 40)),
            tiers=Tiers(pool, self.stores, KeyCopies(self.level_rng)),
        )
        self.replica = SimulatedReplica(self.planner, self.residency, self, depth=depth)
        self.tenants = {f"t{i}": rng.choice((0.5, 1.0, 1.0, 2.0)) for i in range(rng.randint(2, 4))}
        self.adapters = [f"a{i}" for i in range(rng.randint(1, 6))]
        self.speed = speed
        self._ids = itertools.count()
        self._events: list[tuple[float, int, str, object]] = []
        self._prefixes = [[rng.randrange(9) for _ in range(self.longest)] for _ in range(3)]
        self._probes: dict[Sequence, float] = {}
        self._aged: dict[Sequence, _Wait] = {}
        self._service = 0.0
        self._common: dict[tuple[str, str], float] = {}
        self._longest_stay = 0.0
        self._refilled = 0
        self._draw()

    @property
    def now(self) -> float:
        return self.replica.now

    # -- what happens -----------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        rng = self.rng
        if self.kind == "fair":
            self.refills = rng.randint(10, 40)
            for tenant in self.tenants:
                for _ in range(2):
                    self._at(0.0, "arrive", self._request(tenant, LatencyClass.STANDARD, plain=True))
            return
        for _ in range(rng.randint(3, 25)):
            if self.kind == "flood" and rng.random() < 0.8:
                at, latency_class = rng.uniform(0, 12) * self.speed, LatencyClass.INTERACTIVE
            else:
                at, latency_class = rng.uniform(0, 5) * self.speed, rng.choice(_CLASSES)
            request = self._request(rng.choice(list(self.tenants)), latency_class, at=at)
            self._at(at, "arrive", request)
            if rng.random() < 0.15:
                self._at(at + rng.expovariate(1 / self.speed), "cancel", request.request_id)
        if rng.random() < 0.3:
            digest, at = rng.choice(self.adapters), rng.uniform(0, 4) * self.speed
            self._at(at, "revoke", digest)
            self._at(at + rng.uniform(0, 2) * self.speed, "readmit", digest)

    def _request(self, tenant: str, latency_class: LatencyClass, *, at: float = 0.0, plain: bool = False) -> Request:
        rng = self.rng
        length = rng.randint(1, self.longest - 1)
        output = rng.randint(1, self.longest - length)
        shared = rng.randint(0, length)
        prompt = rng.choice(self._prefixes)[:shared] + [rng.randrange(9) for _ in range(length - shared)]
        deadline = None
        if not plain and rng.random() < 0.3:
            deadline = at + rng.uniform(0.1, 6) * self.speed
        digest = None if plain or rng.random() < 0.3 else rng.choice(self.adapters)
        return Request(
            f"r{next(self._ids)}",
            tenant,
            tenant,
            AdapterRef(digest),
            tuple(prompt),
            GREEDY,
            output,
            deadline,
            latency_class=latency_class,
            weight=self.tenants[tenant],
        )

    def _at(self, time: float, what: str, value: object) -> None:
        heapq.heappush(self._events, (time, next(self._ids), what, value))

    # -- the engine's part ------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until nothing is left to do. Raises AssertionError where a promise is broken."""
        planner, idle = self.planner, 0
        for _ in range(MAX_STEPS):
            self._take_events()
            plan = self.replica.turn()
            self._check_after()
            if plan.chunks or plan.expired:
                idle = 0
                self.outcome.steps += bool(plan.chunks)
            elif not self._events and not planner.sequences():
                self._check_end()
                return self.outcome
            else:
                idle += 1
                self._sleep(idle)
        raise AssertionError(f"{len(planner.sequences())} requests are not done after {MAX_STEPS} steps")

    def _sleep(self, idle: int) -> None:
        """To the next event; a planner that does nothing although there is something to do is stuck."""
        times = [at for store in self.stores for at in store.ends if at > self.now]
        if (at := self.residency.next_arrival(self.now)) is not None:
            times.append(at)
        if self._events:
            times.append(self._events[0][0])
        if any(map(self.planner.restores.restoring, self.planner.waiting)):
            times.append(self.now + IDLE_SECONDS * self.speed)
        if times:
            self.replica.advance(min(times))
        else:
            assert idle < 5, f"stuck at {self.now} with {len(self.planner.sequences())} requests"
            self.replica.advance(self.now + IDLE_SECONDS)

    def _take_events(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            _, _, what, value = heapq.heappop(self._events)
            if isinstance(value, Request):
                self._arrive(value)
            elif what == "cancel":
                for sequence in self.planner.sequences():
                    if sequence.request.request_id == value:
                        self.replica.finish(sequence, "cancelled")
                        self.outcome.cancelled += 1
            elif what == "revoke":
                self._revoke(str(value))
            else:
                self.residency.readmit(str(value))

    def _arrive(self, request: Request) -> None:
        planner = self.planner
        probe = None
        if request.adapter.digest in self.residency.revoked:
            self.outcome.revoked += 1
            return
        if len(planner.waiting) >= planner.limits.max_queue:
            self.outcome.refused += 1
            return
        if request.deadline is not None:
            cost = self.residency.cost(request.adapter.digest)
            predicted = predict(self._outlook(), planner.costs, planner.limits, request, cost.seconds, cost.rank)
            if self.now + predicted.first_token > request.deadline:
                self.outcome.refused += 1
                if planner.costs.observed < 8 or self.rng.random() >= self.let_in:
                    return
                probe = request.deadline - self.now
                request = replace(request, deadline=None)
        sequence = self.replica.add(request)
        if probe is not None:
            self._probes[sequence] = probe

    def _outlook(self) -> Outlook:
        return observe(self.planner)

    def _revoke(self, digest: str) -> None:
        self.replica.settle()
        self.residency.revoke(digest)
        for sequence in self.planner.sequences():
            if sequence.digest == digest:
                self.replica.finish(sequence, "revoked")
                self.outcome.revoked += 1
        self.planner.drop_prefixes(digest)

    # -- the script of the replica ----------------------------------------------------------------------------------

    def seconds(self, plan: StepPlan) -> float:
        seconds = self.truth.predict(plan.shape) * self.rng.uniform(0.9, 1.2)
        return seconds * 20 if self.rng.random() < 0.01 else seconds

    def planned(self, plan: StepPlan) -> None:
        self._check_plan(plan)

    def fails(self, plan: StepPlan) -> bool:
        return self.kind == "mixed" and self.rng.random() < 0.003

    def accepted(self, chunk: Chunk) -> int:
        accepted = self.rng.randint(0, len(chunk.draft))
        self.outcome.drafted += len(chunk.draft)
        self.outcome.accepted += accepted
        return accepted

    def token(self, sequence: Sequence) -> None:
        if sequence.output_tokens == 1 and sequence in self._probes:
            self.outcome.probes.append((self._probes.pop(sequence), self.now - sequence.arrival))

    def done(self, sequence: Sequence) -> bool:
        return sequence.output_tokens >= sequence.request.max_tokens or self.rng.random() < 0.02

    def ended(self, sequence: Sequence, how: str) -> None:
        self._probes.pop(sequence, None)
        self._aged.pop(sequence, None)
        if sequence.admitted_at is not None:
            self._longest_stay = max(self._longest_stay, self.now - sequence.admitted_at)
        self.outcome.expired += how == "expired"
        self.outcome.failed += how == "failed"
        if how == "served":
            self._served(sequence)

    def _served(self, sequence: Sequence) -> None:
        self.outcome.served += 1
        self.outcome.cached_tokens += sequence.cached_tokens
        if self.kind == "fair" and self._refilled < self.refills:
            self._refilled += 1
            for tenant in self.tenants:
                while self.planner.waiting.waiting_of(tenant) < 2:
                    self._arrive(self._request(tenant, LatencyClass.STANDARD, plain=True))

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _check_plan(self, plan: StepPlan) -> None:
        planner = self.planner
        assert plan.rows <= planner.limits.max_batched_tokens
        assert len({chunk.sequence for chunk in plan.chunks}) == len(plan.chunks)
        late = set(plan.expired)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert sequence.status is Status.RUNNING and sequence not in late and chunk.count > 0
            assert chunk.known_end == sequence.planned <= sequence.length
            assert not chunk.draft or sequence.output_tokens + len(chunk.draft) < sequence.request.max_tokens
            assert len(sequence.blocks) * planner.pool.block_size >= chunk.end
            assert sequence.digest is None or self.residency.pins[sequence.digest] > 0
        assert len(set(plan.fresh_blocks)) == len(plan.fresh_blocks)
        if not plan.chunks and not self.replica.in_flight and not late:
            ready = [s for s in planner.sequences() if self.residency.is_ready(s.digest)]
            could = [s for s in ready if not planner.restores.restoring(s)]
            assert not could, "nothing is computed, something could be"
            planner.restores.check_patience(self.now)
        self.outcome.preempted += len(plan.preempted)
        weights = self.tenants
        for chunk in plan.chunks:
            rank = self.residency.cost(chunk.sequence.digest).rank
            self._service += (
                Prices().tokens(0, chunk.known_end - chunk.start, rank) / weights[chunk.sequence.request.tenant]
            )

    def _check_after(self) -> None:
        self.planner.check_integrity()
        self.residency.check_integrity()
        if self.kind == "fair":
            self._check_fairness()
        else:
            self._check_nobody_starves()

    def _bound(self) -> float:
        """How far the counters of two tenants may drift apart while both have work waiting: one batch, the KV it holds
        meanwhile, a quantum; in units of the lightest tenant."""
        planner, prices = self.planner, Prices()
        stay = max([self._longest_stay, *(self.now - (s.admitted_at or 0.0) for s in planner.running)])
        pages = prices.block_second * planner.pool.num_blocks * stay
        batch = prices.bound(self.longest, planner.pool.capacity_tokens, 0 if self.kind == "fair" else max(RANKS))
        loads = 0.0 if self.kind == "fair" else 3.0 * len(self.adapters)
        return (batch + pages + loads + planner.limits.quantum) / min(self.tenants.values())

    def _check_fairness(self) -> None:
        planner = self.planner
        backlogged = [t for t in self.tenants if planner.waiting.waiting_of(t)]
        common: dict[tuple[str, str], float] = {}
        bound = 2 * self._bound()
        for pair in itertools.combinations(backlogged, 2):
            drift = planner.accounts.of(pair[0]) - planner.accounts.of(pair[1])
            common[pair] = self._common.get(pair, drift)
            gap = abs(drift - common[pair])
            self.outcome.largest_gap_share = max(self.outcome.largest_gap_share, gap / bound)
            assert gap <= bound, f"{pair} drifted {gap} apart, {bound} is allowed"
        self._common = common

    def _check_nobody_starves(self) -> None:
        """Once a sequence has aged and could start, the others get no more service before it than catching up with its
        tenant and the drift that fairness allows, and three turns for each of its class's."""
        planner, targets = self.planner, self.planner.targets
        self.outcome.aged = planner.waiting.aged
        for sequence in planner.waiting:
            if sequence.admitted_at is not None or targets.rank(sequence, self.now) != 0:
                continue
            if not self.residency.is_ready(sequence.digest):
                self._aged.pop(sequence, None)
                continue
            wait = self._aged.get(sequence)
            if wait is None:
                own = planner.accounts.of(sequence.request.tenant)
                gap = max(0.0, *(own - planner.accounts.of(t) for t in self.tenants))
                self._aged[sequence] = _Wait(self._service, gap)
                continue
            ahead = sum(s.request.tenant == sequence.request.tenant for s in planner.waiting) + len(planner.running) + 1
            allowed = 4 * len(self.tenants) * (wait.gap + 2 * self._bound() * ahead)
            got = self._service - wait.service
            assert got <= allowed, f"{sequence.request.request_id} waits while others got {got}, {allowed} is allowed"

    def _check_end(self) -> None:
        planner = self.planner
        assert planner.pool.used == 0 and not planner.running and not len(planner.waiting)
        assert all(pins == 0 for pins in self.residency.pins.values())
        assert planner.accounts.counters.gap() == 0.0
        assert not self.replica.in_flight
        restores = planner.restores
        self.outcome.restored = sum(counts.restored_blocks for counts in restores.tiers.counts().values())
        self.outcome.given_up = restores.counts.given_up
        assert not restores.held
