"""Step 10, the operating point: the largest rate whose attainment keeps the promise, with an interval.

One run close to the cliff proves nothing: a rate counts only where the lower 90 % bound over at least 5 seeds and 4,000
requests is at least α. Seeds are common to all rates, so that a trace of a higher rate is the same one, faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from scipy.stats import beta, t

from capacity.errors import PlanRefused
from capacity.results import CurvePoint, Interval, OperatingPoint, Step
from capacity.runs import RunResult, spread, within
from capacity.simulate import Scene, replay, run
from capacity.workload import Workload, draw

LEAST_SEEDS, LEAST_REQUESTS = 5, 4_000
SKETCH_REQUESTS = 600
CONFIDENCE = 0.9
# Share of a run's calls that may be waiting when the last one arrives, as a lower bound: one waiting call of ten
# proves no queue. A promise that is longer than a run would hide a queue that grows; one that does not holds some calls
# whatever the length of the run.
MOST_BACKLOG = 0.1
_AT_ONCE = 1e6  # calls a second
_LONGEST_SECONDS = 1e5
Progress = Callable[[str], None]


def quiet(message: str) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount of simulation for one rate. first_seed: the others follow"""

    seeds: int = LEAST_SEEDS
    requests: int = LEAST_REQUESTS
    first_seed: int = 1

    def __post_init__(self) -> None:
        if self.seeds < 2 or self.requests < 10 * self.seeds:
            raise PlanRefused(10, "an interval needs at least two seeds and ten requests each")

    def sketch(self) -> Effort:
        """Return the effort that a picture needs."""
        return Effort(min(3, self.seeds), min(SKETCH_REQUESTS, self.requests), self.first_seed)

    @property
    def enough(self) -> bool:
        """Return whether the effort bears a promise."""
        return self.seeds >= LEAST_SEEDS and self.requests >= LEAST_REQUESTS


def interval(shares: Sequence[float], kept: int, requests: int) -> Interval:
    """Return the 90 % interval of attainment: the wider, on each side, of the seeds' t interval and of the binomial's
    (Clopper and Pearson, 1934). The first knows that requests of one run share their queue, the second that no failure
    in a few runs is no proof."""
    mean = kept / requests
    half = 0.0
    if len(shares) > 1:
        error = float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
        half = float(t.ppf(0.5 + CONFIDENCE / 2, len(shares) - 1)) * error
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if kept == 0 else float(beta.ppf(tail, kept, requests - kept + 1))
    high = 1.0 if kept == requests else float(beta.ppf(1 - tail, kept + 1, requests - kept))
    return Interval(mean, max(0.0, min(low, mean - half)), min(1.0, max(high, mean + half)), CONFIDENCE)


def measure(scene: Scene, rate: float, capacity: float, effort: Effort) -> CurvePoint:
    """Simulate one rate with every seed. capacity: the highest rate, for the load"""
    each = math.ceil(effort.requests / effort.seeds)
    results = [run(scene, rate, each, effort.first_seed + number) for number in range(effort.seeds)]
    return point(results, scene.workload, rate, capacity)


def point(results: Sequence[RunResult], workload: Workload, rate: float, capacity: float) -> CurvePoint:
    """Return what runs of one rate say together."""
    shares = [result.attainment(workload) for result in results]
    requests = sum(len(result.calls) for result in results)
    kept = sum(within(call, workload) for result in results for call in result.calls)
    return CurvePoint(
        rate=rate,
        load=rate / capacity,
        attainment=interval(shares, kept, requests),
        output_rate=float(np.mean([result.output_rate for result in results])),
        ttft=spread(np.concatenate([result.ttft() for result in results])),
        itl=spread(np.concatenate([result.itl() for result in results])),
        tpot=spread(np.concatenate([result.tpot() for result in results])),
        hit=float(np.mean([result.hit for result in results])),
        busy=float(np.mean([result.busy for result in results])),
        refused=float(np.mean([result.refused for result in results])),
        backlog=interval([r.backlog for r in results], sum(r.waiting for r in results), requests).low,
        requests=requests,
        seeds=len(results),
    )


def kept(found: CurvePoint, share: float) -> float:
    """Return a share of calls that keep their promise, the mean's or a bound's; none where a queue grew: those that
    kept it came early."""
    return 0.0 if found.backlog > MOST_BACKLOG else share


def highest_rate(scene: Scene, effort: Effort) -> float:
    """Return the requests per second that the replicas serve when all calls are there at once: what loads are shares
    of. A fleet that is not overloaded may serve more for a while."""
    single = replace(scene, replicas=1)
    requests = max(100, min(effort.requests // 4, 4 * scene.profile.replica.max_num_seqs))
    # Until the last is served, however slow the machine is: a rate until then counts none of the calls that are half
    # done, and no call is a warm-up of others that are there as well.
    arrivals = draw(scene.workload, _AT_ONCE, requests, effort.first_seed)
    result = replay(single, arrivals, effort.first_seed, warm_share=0.0, until=_LONGEST_SECONDS)
    ends = [call.ended for call in result.calls if call.ended < float("inf")]
    if not ends:
        raise PlanRefused(10, "no call of this workload is ever served: each is longer than context or KV cache")
    return len(ends) / max(ends) * scene.replicas


def curve(scene: Scene, loads: Iterable[float], effort: Effort, progress: Progress = quiet) -> list[CurvePoint]:
    """Return latency against throughput at shares of the highest rate."""
    capacity = highest_rate(scene, effort)
    points = []
    for load in loads:
        if not 0 < load <= 2:
            raise PlanRefused(10, f"load {load:g}: above 0 and at most 2")
        progress(f"load {load:.2f}: {load * capacity:.2f} requests/s")
        points.append(measure(scene, load * capacity, capacity, effort))
    return points


def why(found: CurvePoint, workload: Workload) -> str:
    """Return in one sentence why a point does not keep the promise."""
    bound = found.attainment
    misses = []
    for name, promise in sorted(workload.promises.items()):
        if found.ttft.p99 > promise.ttft:
            misses.append(f"the p99 of the first token is {found.ttft.p99:.2f} s ({name}: {promise.ttft:g} s)")
        if found.tpot.p99 > promise.tpot:
            misses.append(f"the p99 per token is {1e3 * found.tpot.p99:.0f} ms ({name}: {1e3 * promise.tpot:.0f} ms)")
    if found.backlog > MOST_BACKLOG:
        misses.append(f"at least {100 * found.backlog:.0f} % still waited when the last one came, so queues grow")
    if found.refused > 0:
        misses.append(f"{100 * found.refused:.1f} % are refused")
    reason = "; ".join(misses) or "the runs differ too much for a proof"
    return (
        f"At {found.rate:.2f} requests/s {100 * bound.value:.2f} % are within the promise, at least "
        f"{100 * bound.low:.2f} % with 90 % confidence, {100 * workload.alpha:g} % are promised: {reason}."
    )


def unkept(lowest: CurvePoint, workload: Workload) -> PlanRefused:
    """Return the refusal of a workload whose lowest rate that was tried fails."""
    return PlanRefused(10, f"no rate keeps the promise, not even a twentieth of the highest. {why(lowest, workload)}")


def trap_table(scene: Scene, loads: Sequence[float], effort: Effort) -> list[tuple[float, float, float, float]]:
    """Return (load, busy share, attainment with Poisson arrivals, with cv 2) a row: why busy seconds are no load."""
    calm = replace(scene, workload=_bursts(scene.workload, 1.0))
    wild = replace(scene, workload=_bursts(scene.workload, 4.0))
    capacity = highest_rate(calm, effort)
    rows = []
    for load in loads:
        quiet_point = measure(calm, load * capacity, capacity, effort)
        burst_point = measure(wild, load * capacity, capacity, effort)
        rows.append((load, quiet_point.busy, quiet_point.attainment.value, burst_point.attainment.value))
    return rows


def _bursts(workload: Workload, cv2: float) -> Workload:
    return msgspec.structs.replace(workload, cv2=cv2)


def step(found: OperatingPoint, replicas: int, workload: Workload) -> Step:
    """Return step 10 as it is printed."""
    chosen = found.points[replicas]
    return Step(
        10,
        "Operating point",
        {
            "replicas": f"{replicas}",
            "promise": f"{100 * workload.alpha:g} %",
            "seeds": f"{chosen.seeds}",
            "requests": f"{chosen.requests:,}",
        }
        | {name: f"{value}" for name, value in found.settings.items()},
        "μ* = max rate with lower 90 % bound of attainment ≥ α",
        f"{chosen.rate:.2f} requests/s ({100 * chosen.load:.0f} % of the highest): "
        f"{100 * chosen.attainment.value:.2f} % within the promise, at least {100 * chosen.attainment.low:.2f} % with "
        f"{100 * CONFIDENCE:.0f} % confidence",
        chosen.rate,
        "requests/s",
        found.source,
        found.warnings,
        f"{100 * chosen.attainment.low:.2f} % ≥ {100 * workload.alpha:g} % at {chosen.rate:.2f} requests/s. "
        f"{found.next_fails[replicas]}",
    )
