"""The fit of steps to cells that were run from outside.

Each cell is simulated with the replica's own planner, which says which steps a figure is made of; the steps are fitted
to the figures (`steps.fit_sums`), and the cells are simulated anew with the new steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from capacity.closed_loop import ClosedRun, Figure, figures_of, run_closed
from capacity.profile import Profile
from capacity.runs import TimedCall
from capacity.simulate import Scene
from capacity.steps import PRIOR, SHARES, StepModel, fit_sums, kept_residuals
from capacity.workload import Arrival, Promise, Sample, Workload

_ROUNDS = 6
_FIRST_WAY = 1e-3


@dataclass(frozen=True, slots=True)
class Cell:
    """A closed loop. output: tokens, in the mean; adapters: how many are called in turn

    held: whether it is kept from the fit, to judge it
    """

    clients: int
    prompt: int
    output: int
    adapters: int = 0
    held: bool = False

    @property
    def least(self) -> int:
        """Return how many calls it takes: the first of each client is not counted."""
        return self.clients + max(4, self.clients // 2)

    def arrivals(self, count: int) -> list[Arrival]:
        """Return its calls; their outputs differ, so that waves do not stay together."""
        return [
            Arrival(
                0.0,
                "standard",
                self.prompt,
                0,
                max(2, round(self.output * (0.5 + number * 0.6180339887498949 % 1.0))),
                number % self.adapters if self.adapters else None,
            )
            for number in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell that was run, once in each pass, always with the same calls."""

    cell: Cell
    arrivals: list[Arrival]
    passes: list[list[TimedCall]]

    def figures(self) -> dict[str, float]:
        """Return its figures in seconds: the medians over passes, so that no neighbour's minute is a figure."""
        found = [figures_of(calls, self.cell.clients) for calls in self.passes]
        return {name: float(np.median([one[name].value for one in found])) for name in found[0]}


@dataclass(frozen=True, slots=True)
class Fitting:
    """The fit of a step model to cells. draft: a profile with the replica's limits; ranks: of its adapters, by share"""

    draft: Profile
    ranks: Mapping[str, float]

    def profile(self, model: StepModel, way: float) -> Profile:
        """Return the draft with a model. way: seconds from a client to the engine"""
        return msgspec.structs.replace(
            self.draft,
            coefficients=dict(model.coefficients),
            shape=model.shape,
            residuals=model.residuals,
            http_seconds=way,
        )

    def fit(self, ran: Sequence[Measured]) -> tuple[StepModel, float]:
        """Return the model, and the seconds from a client to the engine, whose simulated figures are nearest."""
        truth = np.array([value for one in ran for value in one.figures().values()])
        single = ran[0].figures()
        first = self._simulate(ran[0], StepModel(), _FIRST_WAY)
        speed = single["middle"] / figures_of(first.calls, 1)["middle"].value
        model, way = StepModel().scaled(dict.fromkeys(set(PRIOR) - set(SHARES), speed)), _FIRST_WAY
        best, least = (model, way), float("inf")
        for number in range(_ROUNDS + 1):
            runs = [self._simulate(one, model, way) for one in ran]
            said = [list(figures_of(run.calls, one.cell.clients).values()) for run, one in zip(runs, ran, strict=True)]
            values = np.array([figure.value for row in said for figure in row])
            off = float(np.abs(np.log(values / truth)).mean())
            if off < least:
                best, least = (model, way), off
            if number == _ROUNDS:
                break
            weights, ways = _sums(runs, said, way)
            works = [work for run in runs for work in run.works]
            model, way = fit_sums(works, weights, ways, truth, way=way)
        return best

    def errors(self, ran: Sequence[Measured], model: StepModel, way: float) -> list[float]:
        """Return |predicted − measured| / measured of every figure of cells."""
        found = []
        for one in ran:
            said = figures_of(self._simulate(one, model, way).calls, one.cell.clients)
            found += [abs(said[name].value / value - 1) for name, value in one.figures().items()]
        return found

    @staticmethod
    def drift(ran: Sequence[Measured]) -> float:
        """Return how far the pass farthest from what is fitted is from it, in the median of its cells; 0 where no cell
        was run twice."""
        logs: dict[int, list[float]] = {}
        for one in ran:
            if len(one.passes) > 1:
                usual = one.figures()["all"]
                for number, calls in enumerate(one.passes):
                    took = figures_of(calls, one.cell.clients)["all"].value
                    logs.setdefault(number, []).append(np.log(took / usual))
        return max((abs(float(np.expm1(np.median(one)))) for one in logs.values()), default=0.0)

    def residuals(self, ran: Sequence[Measured], model: StepModel, way: float) -> tuple[float, ...]:
        """Return log(measured / predicted) of single steps, ascending: those of one client are seen one by one."""
        found: list[float] = []
        for one in ran:
            if one.cell.clients == 1:
                said = np.concatenate([np.diff(call.tokens) for call in self._simulate(one, model, way).calls])
                for calls in one.passes:
                    seen = np.concatenate([np.diff(call.tokens) for call in calls])
                    # A client that slept reads two tokens at once: neither their gap nor the one before is a step's.
                    together = seen < said / 4
                    alone = ~(together | np.append(together[1:], False))
                    logs = np.log(seen[alone] / said[alone])
                    found += (logs - np.median(logs)).tolist()
        return kept_residuals(found)

    def _simulate(self, one: Measured, model: StepModel, way: float) -> ClosedRun:
        scene = Scene(self.draft, workload_of(one.cell.adapters, self.ranks), noise=False, model=model)
        return run_closed(scene, one.arrivals, one.cell.clients, way)


def _sums(
    runs: Sequence[ClosedRun], said: Sequence[Sequence[Figure]], way: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return how much of each step each figure has, [figures, steps of all runs], and of the way, [figures]."""
    total, at, place = sum(len(run.works) for run in runs), 0, 0
    weights = np.zeros((sum(map(len, said)), total))
    ways = np.zeros(len(weights))
    for run, row in zip(runs, said, strict=True):
        for figure in row:
            weights[place, at : at + len(run.works)], idle = figure.steps(run)
            ways[place] = idle / way
            place += 1
        at += len(run.works)
    return weights, ways


def workload_of(adapters: int, ranks: Mapping[str, float]) -> Workload:
    return Workload(
        rate=1.0,
        promises={"standard": Promise(ttft=60.0, tpot=60.0)},
        samples=(Sample(latency_class="standard", prompt=16, output=2),),
        adapters=adapters,
        ranks=dict(ranks),
    )
