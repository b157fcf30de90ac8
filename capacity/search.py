"""The search of step 10: rates are tried until one holds and one that is hardly higher fails.

A rate that is far from the cliff shows it in a run or two, so that only what is near to it, and what is returned, is
simulated with every seed. Runs of one replica are kept: a promise changes no run, only what is counted of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from capacity.errors import PlanRefused
from capacity.operating import (
    CONFIDENCE,
    LEAST_REQUESTS,
    LEAST_SEEDS,
    MOST_BACKLOG,
    Effort,
    Progress,
    highest_rate,
    interval,
    point,
    quiet,
    unkept,
    why,
)
from capacity.profile import Profile, Replica
from capacity.results import CurvePoint, OperatingPoint, Source
from capacity.runs import RunResult, within
from capacity.simulate import WARM_SHARE, Scene, run

# The search ends when the rate that fails is at most this much above the one that holds.
PRECISION = 0.03
# Beside a rate that is known roughly, the first step; each further one in the same direction is its square.
_NEAR = 1.06
LEAST_LOAD = 0.05
# Runs → shares of the misses that the promise allows: with at most the first in every run, a rate holds at first sight;
# with more than the second in the mean it fails. More runs than two are judged as two.
_FIRST_SIGHT = {1: (0.1, 2.0), 2: (2 / 3, 1.0)}


@dataclass(slots=True)
class KeptRuns:
    """Runs of one workload, whatever is promised to its callers. Those of several replicas are not kept: no other
    search has the same ones."""

    _kept: dict[tuple[Replica, float, int, int], RunResult] = field(default_factory=dict)
    _highest: dict[Replica, float] = field(default_factory=dict)

    def run(self, scene: Scene, rate: float, requests: int, seed: int) -> RunResult:
        """Return a run, simulated at most once."""
        if scene.replicas > 1:
            return run(scene, rate, requests, seed)
        key = (scene.profile.replica, rate, requests, seed)
        if key not in self._kept:
            self._kept[key] = run(scene, rate, requests, seed)
        return self._kept[key]

    def highest(self, scene: Scene, effort: Effort) -> float:
        """Return `highest_rate`, simulated once for one replica's limits, and as well for a sketch as for a promise: a
        sketch that is too hopeful has the accelerator simulated in vain."""
        limits = scene.profile.replica
        if limits not in self._highest:
            self._highest[limits] = highest_rate(replace(scene, replicas=1), Effort(first_seed=effort.first_seed))
        return self._highest[limits] * scene.replicas


def operating_point(
    scene: Scene,
    effort: Effort | None = None,
    *,
    replicas: Sequence[int] = (1,),
    settings: Sequence[Mapping[str, int]] = ({},),
    near: float | None = None,
    runs: KeptRuns | None = None,
    progress: Progress = quiet,
) -> OperatingPoint:
    """Search the largest rate for each number of replicas, over the engine's settings on one replica.

    settings: such as {"max_num_seqs": 32, "max_batched_tokens": 512}; the best is taken for every number of replicas
    near: a rate of one replica that the search begins with, such as a sketch's; None: nothing is known
    runs: of the same workload and step times with the same effort, perhaps under other promises
    Raises PlanRefused where not even a twentieth of the highest rate keeps the promise.
    """
    effort, runs = effort or Effort(), runs or KeptRuns()
    few = f"Only {effort.requests:,} requests and {effort.seeds} seeds were simulated"
    warnings = (
        () if effort.enough else (f"{few}: plan with {LEAST_REQUESTS:,} and {LEAST_SEEDS} before you rely on it.",)
    )
    _check_effort(effort, scene.workload.alpha)
    best: tuple[float, Mapping[str, int], Scene] | None = None
    refused: PlanRefused | None = None
    found: dict[int, tuple[CurvePoint, str]] = {}
    for setting in settings:
        candidate = replace(scene, profile=with_settings(scene.profile, setting), replicas=1)
        try:
            chosen = _Search(candidate, effort, runs, progress).result(near)
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
            found[count] = _Search(replace(best[2], replicas=count), effort, runs, progress).result(each * count)
        each = found[count][0].rate / count
    return OperatingPoint(
        mu={count: found[count][0].rate for count in replicas},
        points={count: found[count][0] for count in replicas},
        next_fails={count: found[count][1] for count in replicas},
        settings=best[1],
        source=Source.TRANSFERRED if scene.profile.transferred else Source.SIMULATED,
        warnings=warnings,
    )


class _Search:
    """The search of one scene's rate. All that was tried lies between a rate that holds and one that fails."""

    def __init__(self, scene: Scene, effort: Effort, runs: KeptRuns, progress: Progress) -> None:
        self._scene, self._effort, self._runs, self._progress = scene, effort, runs, progress
        self._capacity = runs.highest(scene, effort)
        self._results: dict[float, list[RunResult]] = {}  # of each rate, in the order of their seeds
        self._held: list[CurvePoint] = []  # ascending
        self._failed: CurvePoint | None = None
        # Whether every rate is tried with every seed: once the first seeds misled, they do so again.
        self._thorough = False

    def result(self, near: float | None) -> tuple[CurvePoint, str]:
        """Return the largest rate that holds, and why a higher one does not. near: where the rate may be"""
        workload, capacity = self._scene.workload, self._capacity
        self._try(capacity if near is None else min(near, capacity))
        up, down = (1.0, 0.6) if near is None else (_NEAR, 1 / _NEAR)
        while True:  # each turn raises what holds, lowers what fails, or ends
            best, failed = self._held[-1] if self._held else None, self._failed
            if best is None:
                assert failed is not None
                if failed.rate <= LEAST_LOAD * capacity:
                    raise unkept(failed, workload)
                self._try(max(LEAST_LOAD * capacity, failed.rate * down))
                down = max(0.6, down * down)
            elif failed is None and best.rate < capacity:
                self._try(min(up * best.rate, capacity))
                up = min(1.3, up * up)
            elif failed is not None and failed.rate > best.rate * (1 + PRECISION):
                self._try((best.rate + failed.rate) / 2)
            elif best.seeds < self._effort.seeds:
                self._held.pop()
                self._thorough = not self._try(best.rate, prove=True)
            elif failed is None:
                return best, (
                    f"More than {best.rate:.2f} requests/s are never served for long: queues grow, however patient."
                )
            else:
                return best, why(failed, workload)

    def _try(self, rate: float, *, prove: bool = False) -> bool:
        """Simulate a rate until its verdict is known. prove: with every seed, unless the promise is out of reach"""
        prove = prove or self._thorough
        scene, effort, alpha = self._scene, self._effort, self._scene.workload.alpha
        each = math.ceil(effort.requests / effort.seeds)
        results = self._results.setdefault(rate, [])
        keeps: bool | None = None
        while keeps is None and len(results) < effort.seeds:
            results.append(self._runs.run(scene, rate, each, effort.first_seed + len(results)))
            keeps = False if self._out_of_reach(results) else None if prove else self._first_sight(results)
        tried = point(results, scene.workload, rate, self._capacity)
        holds = (tried.attainment.low >= alpha if keeps is None else keeps) and tried.backlog <= MOST_BACKLOG
        self._progress(
            f"{rate:.2f} requests/s (load {tried.load:.2f}): {100 * tried.attainment.value:.2f} % within the promise, "
            f"at least {100 * tried.attainment.low:.2f} %: {'holds' if holds else 'fails'}"
            + ("" if len(results) == effort.seeds else f" after {len(results)} of {effort.seeds} runs")
        )
        if holds:
            self._held.append(tried)
        else:
            self._failed = tried
        return holds

    def _out_of_reach(self, results: Sequence[RunResult]) -> bool:
        """Return whether the promise is broken even if runs to come keep it in every call."""
        missed, counted = self._missed(results)
        most = counted + (self._effort.seeds - len(results)) * len(results[-1].calls)
        return interval([1.0], most - missed, most).low < self._scene.workload.alpha

    def _first_sight(self, results: Sequence[RunResult]) -> bool | None:
        """Return whether the promise is kept, as the first runs have it: each keeps it with misses to spare, or their
        mean breaks it. None: they do not show it yet. A rate that is taken for one that fails though it just
        holds makes the plan more careful by one step."""
        if len(results) == self._effort.seeds:
            return None
        allowed = 1 - self._scene.workload.alpha
        holds, fails = _FIRST_SIGHT[min(len(results), max(_FIRST_SIGHT))]
        missed = [1 - result.attainment(self._scene.workload) for result in results]
        if max(missed) <= holds * allowed:
            return True
        return False if sum(missed) > fails * allowed * len(missed) else None

    def _missed(self, results: Sequence[RunResult]) -> tuple[int, int]:
        """Return how many calls broke their promise, and how many there were."""
        calls = [call for result in results for call in result.calls]
        return sum(not within(call, self._scene.workload) for call in calls), len(calls)


def _check_effort(effort: Effort, alpha: float) -> None:
    """Raise PlanRefused where not even requests that are all served would prove the promise."""
    counted = effort.seeds * math.floor((1 - WARM_SHARE) * math.ceil(effort.requests / effort.seeds))
    if interval([1.0] * effort.seeds, counted, counted).low < alpha:
        needed = math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(alpha) / (1 - WARM_SHARE)) + effort.seeds
        raise PlanRefused(
            10, f"{effort.requests} requests cannot prove that {100 * alpha:g} % are served: at least {needed} can"
        )


def with_settings(profile: Profile, setting: Mapping[str, int]) -> Profile:
    """Return a profile whose replica has these settings, such as {"max_num_seqs": 32}. Raises PlanRefused."""
    if setting.get("max_num_seqs", 0) > setting.get("max_batched_tokens", profile.replica.max_batched_tokens):
        raise PlanRefused(10, "max_batched_tokens must be at least max_num_seqs, or decodes would starve one another")
    unknown = setting.keys() - {"max_num_seqs", "max_batched_tokens", "blocks", "pages", "slots"}
    if unknown:
        raise PlanRefused(10, f"settings that are searched: not {', '.join(sorted(unknown))}")
    return msgspec.structs.replace(profile, replica=msgspec.structs.replace(profile.replica, **setting))
