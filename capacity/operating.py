"""Step 10, the operating point: the largest rate whose attainment keeps the promise, with an interval.

One run close to the cliff proves nothing: a rate counts only where the lower 90 % bound over at least 5 seeds and 4,000
requests is at least α. Seeds are common to all rates, so that a trace of a higher rate is the same one, faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from scipy.stats import beta, t

from capacity.errors import PlanRefused
from capacity.profile import Profile
from capacity.results import CurvePoint, Interval, OperatingPoint, Source, Step
from capacity.runs import RunResult, spread, within
from capacity.simulate import WARM_SHARE, Scene, run
from capacity.workload import Workload

LEAST_SEEDS, LEAST_REQUESTS = 5, 4_000
SKETCH_REQUESTS = 600
CONFIDENCE = 0.9
# The search ends when the rate that fails is at most this much above the one that holds.
PRECISION = 0.03
# Beside a rate that is known roughly, the first step; each further one in the same direction is its square.
_NEAR = 1.06
_MOST_STEPS = 14
_FIRST_LOAD = 0.6
# Share of a run's calls that may be waiting when the last one arrives, as a lower bound: one waiting call of ten
# proves no queue. A promise that is longer than a run would hide a queue that grows; one that does not holds some calls
# whatever the length of the run.
MOST_BACKLOG = 0.1
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
        """Return the effort that a choice or a picture needs."""
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


def measure(scene: Scene, rate: float, capacity: float, effort: Effort, *, at_least: float = 0.0) -> CurvePoint:
    """Simulate one rate with every seed. capacity: the highest rate, for the load

    at_least: attainment to prove; the other seeds are spared once it is out of reach, even if they kept every promise
    """
    each = math.ceil(effort.requests / effort.seeds)
    results: list[RunResult] = []
    missed = counted = 0
    for number in range(effort.seeds):
        results.append(run(scene, rate, each, effort.first_seed + number))
        missed += sum(not within(call, scene.workload) for call in results[-1].calls)
        counted += len(results[-1].calls)
        most = counted + (effort.seeds - number - 1) * len(results[-1].calls)
        if interval([1.0], most - missed, most).low < at_least:
            break
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


def highest_rate(scene: Scene, effort: Effort) -> float:
    """Return the requests per second that the replicas serve when all calls are there at once: what loads are shares
    of. A fleet that is not overloaded may serve more for a while."""
    single = replace(scene, replicas=1)
    requests = max(100, min(effort.requests // 4, 4 * scene.profile.replica.max_num_seqs))
    result = run(single, 1e6, requests, effort.first_seed)
    served = sum(call.ended < float("inf") for call in result.calls)
    if not served or result.ended <= 0:
        raise PlanRefused(10, "no call of this workload is ever served: each is longer than context or KV cache")
    return served / result.ended * scene.replicas


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


def operating_point(
    scene: Scene,
    effort: Effort | None = None,
    *,
    replicas: Sequence[int] = (1,),
    settings: Sequence[Mapping[str, int]] = ({},),
    near: float | None = None,
    progress: Progress = quiet,
) -> OperatingPoint:
    """Search the largest rate for each number of replicas, over the engine's settings on one replica.

    settings: such as {"max_num_seqs": 32, "max_batched_tokens": 512}; the best is taken for every number of replicas
    near: a rate of one replica that the search begins with, such as a sketch's; None: nothing is known
    Raises PlanRefused where not even a twentieth of the highest rate keeps the promise.
    """
    effort = effort or Effort()
    few = f"Only {effort.requests:,} requests and {effort.seeds} seeds were simulated"
    warnings = (
        () if effort.enough else (f"{few}: plan with {LEAST_REQUESTS:,} and {LEAST_SEEDS} before you rely on it.",)
    )
    _check_effort(effort, scene.workload.alpha)
    best: tuple[float, Mapping[str, int], Scene] | None = None
    refused: PlanRefused | None = None
    found: dict[int, tuple[CurvePoint, str]] = {}
    for setting in settings:
        candidate = replace(scene, profile=_with(scene.profile, setting), replicas=1)
        try:
            chosen = _search(candidate, effort, progress, near)
        except PlanRefused as error:
            refused = error
            continue
        if best is None or chosen[0].rate > best[0]:
            best, found[1] = (chosen[0].rate, setting, candidate), chosen
    if best is None:
        assert refused is not None
        raise refused
    each = best[0]
    for count in replicas:
        if count not in found:
            progress(f"{count} replicas")
            found[count] = _search(replace(best[2], replicas=count), effort, progress, each * count)
        each = found[count][0].rate / count
    return OperatingPoint(
        mu={count: found[count][0].rate for count in replicas},
        points={count: found[count][0] for count in replicas},
        next_fails={count: found[count][1] for count in replicas},
        settings=best[1],
        source=Source.TRANSFERRED if scene.profile.transferred else Source.SIMULATED,
        warnings=warnings,
    )


def _check_effort(effort: Effort, alpha: float) -> None:
    """Raise PlanRefused where not even requests that are all served would prove the promise."""
    counted = effort.seeds * math.floor((1 - WARM_SHARE) * math.ceil(effort.requests / effort.seeds))
    if interval([1.0] * effort.seeds, counted, counted).low < alpha:
        needed = math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(alpha) / (1 - WARM_SHARE)) + effort.seeds
        raise PlanRefused(
            10, f"{effort.requests} requests cannot prove that {100 * alpha:g} % are served: at least {needed} can"
        )


def _search(scene: Scene, effort: Effort, progress: Progress, near: float | None = None) -> tuple[CurvePoint, str]:
    """Find a rate that holds and one that fails, then halve the interval between them. near: where the rate may be"""
    capacity, alpha = highest_rate(scene, effort), scene.workload.alpha
    held: CurvePoint | None = None
    failed: CurvePoint | None = None
    rate, up, down = (_FIRST_LOAD * capacity, 1.3, 0.6) if near is None else (min(near, capacity), _NEAR, 1 / _NEAR)
    for _ in range(_MOST_STEPS):
        tried = measure(scene, rate, capacity, effort, at_least=alpha)
        holds = tried.attainment.low >= alpha and tried.backlog <= MOST_BACKLOG
        progress(
            f"{rate:.2f} requests/s (load {tried.load:.2f}): {100 * tried.attainment.value:.2f} % within the promise, "
            f"at least {100 * tried.attainment.low:.2f} %: {'holds' if holds else 'fails'}"
        )
        held, failed = (tried, failed) if holds else (held, tried)
        if held is None:
            assert failed is not None
            if rate <= 0.05 * capacity:
                reason = why(failed, scene.workload)
                raise PlanRefused(10, f"no rate keeps the promise, not even a twentieth of the highest. {reason}")
            rate, down = max(0.05 * capacity, rate * down), max(0.6, down * down)
        elif failed is None:
            if rate >= capacity:
                break
            rate, up = min(up * rate, capacity), min(1.3, up * up)
        elif failed.rate <= held.rate * (1 + PRECISION):
            break
        else:
            rate = (held.rate + failed.rate) / 2
    assert held is not None
    if failed is None:
        return held, f"More than {held.rate:.2f} requests/s are never served for long: queues grow, however patient."
    return held, why(failed, scene.workload)


def _with(profile: Profile, setting: Mapping[str, int]) -> Profile:
    if setting.get("max_num_seqs", 0) > setting.get("max_batched_tokens", profile.replica.max_batched_tokens):
        raise PlanRefused(10, "max_batched_tokens must be at least max_num_seqs, or decodes would starve one another")
    unknown = setting.keys() - {"max_num_seqs", "max_batched_tokens", "blocks", "pages", "slots"}
    if unknown:
        raise PlanRefused(10, f"settings that are searched: not {', '.join(sorted(unknown))}")
    return msgspec.structs.replace(profile, replica=msgspec.structs.replace(profile.replica, **setting))


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
