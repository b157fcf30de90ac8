"""The check of a profile: fresh cells, predicted and run; each figure beside its interval.

A prediction knows nothing of its run but how fast the machine was before and after it, by steps that are always the
same.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from capacity.calibrate import Measured, take
from capacity.cells import Figures, Prediction, figures, line_of, measured, predict
from capacity.child import lines_of
from capacity.errors import PlanRefused
from capacity.operating import Effort, Progress, highest_rate, quiet
from capacity.profile import Profile
from capacity.runs import RunResult
from capacity.simulate import WARM_SHARE, Scene
from capacity.workload import Arrival, Workload, draw

# Share of figures that must lie within their 90 % intervals: two of six cells' worth of luck is no proof of a fault.
LEAST_COVERED = 0.8
# Rates as shares of the highest, and how many adapters are asked for: none, as many as fit, four times as many.
LOADS = (0.3, 0.5, 0.7, 0.85, 0.6, 0.4)
ADAPTERS = (0.0, 1.0, 4.0)
_LEAST_CALLS, _MOST_CALLS = 40, 400


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """One cell. load: its rate as a share of the highest; adapters: of its workload

    beside: how many times as long as in the middle of the check reference steps took before and after it
    """

    load: float
    rate: float
    adapters: int
    calls: int
    prediction: Prediction
    truth: Figures
    beside: tuple[float, float] = (1.0, 1.0)

    def covered(self) -> dict[str, bool]:
        """Return for each figure whether its interval held the truth."""
        truth = self.truth.as_dict()
        return {name: truth[name] in interval for name, interval in self.prediction.intervals.items()}

    def errors(self) -> dict[str, float]:
        """Return for each figure |predicted − true| / true."""
        truth, said = self.truth.as_dict(), self.prediction.figures.as_dict()
        return {name: abs(said[name] - value) / value for name, value in truth.items() if value > 0}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """All cells. covered: share of all figures within their intervals"""

    cells: tuple[CheckedCell, ...]
    covered: float

    @property
    def fine(self) -> bool:
        """Return whether the profile kept its word."""
        return self.covered >= LEAST_COVERED


@dataclass(frozen=True, slots=True)
class Asked:
    """A cell to run: its scene and its trace."""

    scene: Scene
    load: float
    rate: float
    arrivals: list[Arrival]


@dataclass(frozen=True, slots=True)
class Ran:
    """Cells that were run.

    beside: how many times as long as the profile says reference steps took, before each cell and after the last
    """

    results: list[RunResult]
    beside: list[float]


class Engine(Protocol):
    """An engine that runs cells. most_adapters: as many as it has, None: any number; unseen: figures it cannot tell"""

    @property
    def most_adapters(self) -> int | None: ...

    @property
    def unseen(self) -> frozenset[str]: ...

    def run(self, profile: Profile, asked: Sequence[Asked], *, seconds: float) -> Ran:
        """Run cells of about `seconds` each. Raises PlanRefused where it is another model than the profile's."""
        ...


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine that is started for the cells. flags: its process's"""

    flags: Sequence[str]
    most_adapters: None = None
    unseen: frozenset[str] = frozenset()

    def run(self, profile: Profile, asked: Sequence[Asked], *, seconds: float) -> Ran:
        """Run cells in one process. Raises PlanRefused."""
        return run_cells(profile, asked, self.flags, seconds=seconds)


def cells_of(
    profile: Profile,
    workload: Workload,
    *,
    count: int,
    seconds: float,
    seed: int,
    most_adapters: int | None = None,
    loads: Sequence[float] = LOADS,
) -> list[Asked]:
    """Draw cells that take about `seconds` each on the engine, loads and adapter mixes taking turns.

    most_adapters: as many as the engine has; None: any number
    """
    asked = []
    for number in range(count):
        load, share = loads[number % len(loads)], ADAPTERS[number % len(ADAPTERS)]
        adapters = round(share * profile.replica.slots) if workload.adapters else 0
        adapters = adapters if most_adapters is None else min(adapters, most_adapters)
        mixed = msgspec.structs.replace(workload, adapters=adapters)
        scene = Scene(profile, mixed)
        rate = load * highest_rate(scene, Effort(seeds=2, requests=400, first_seed=seed))
        calls = round(min(_MOST_CALLS, max(_LEAST_CALLS, rate * seconds)))
        asked.append(Asked(scene, load, rate, draw(mixed, rate, calls, seed + number)))
    return asked


def check(
    profile: Profile,
    workload: Workload,
    engine: Engine,
    *,
    count: int = 6,
    seconds: float = 15.0,
    seed: int = 100,
    progress: Progress = quiet,
) -> CheckResult:
    """Run fresh cells on a real engine and compare them with their predictions. Raises PlanRefused."""
    if not 1 <= count <= 60 or not 1 <= seconds <= 600:
        raise PlanRefused(8, "1 to 60 cells of 1 to 600 seconds each")
    asked = cells_of(profile, workload, count=count, seconds=seconds, seed=seed, most_adapters=engine.most_adapters)
    progress(f"running {count} cells on the engine")
    ran = engine.run(profile, asked, seconds=seconds)
    cells = []
    # A machine that is always slower than its profile is another one, and no neighbour's minute: that is not excused.
    usual = statistics.median(ran.beside)
    swings = itertools.pairwise(one / usual for one in ran.beside)
    for one, truth, beside in zip(asked, ran.results, swings, strict=True):
        adapters, calls = one.scene.workload.adapters, len(one.arrivals)
        progress(f"predicting load {one.load:.2f}, {adapters} adapters, {calls} calls")
        said = predict(one.scene, one.arrivals, beside).without(engine.unseen)
        cells.append(CheckedCell(one.load, one.rate, adapters, calls, said, figures(truth), beside))
    held = [each for cell in cells for each in cell.covered().values()]
    return CheckResult(tuple(cells), sum(held) / len(held))


def run_cells(profile: Profile, asked: Sequence[Asked], flags: Sequence[str], *, seconds: float) -> Ran:
    """Run cells on a real engine, one after the other, in one process. Raises PlanRefused where it fails, or is
    another model than the profile's.

    seconds: that one cell takes, about
    """
    with tempfile.TemporaryDirectory(prefix="intarsia-capacity-") as folder:
        file = Path(folder) / "cells.jsonl"
        file.write_bytes(
            b"\n".join(
                msgspec.json.encode(line_of(one.scene.workload, one.arrivals, f"cell {n}", profile.replica.slots))
                for n, one in enumerate(asked)
            )
        )
        found = take(lines_of([*flags, "--cells", str(file)], seconds=60 + 20 * seconds * len(asked)))
    if (other := found.about["model"]["fingerprint"]) != profile.model.fingerprint:
        raise PlanRefused(8, f"the engine serves {other[:12]}, the profile is of {profile.model.fingerprint[:12]}")
    if len(found.cells) != len(asked):
        raise PlanRefused(8, f"the engine's process ran {len(found.cells)} of {len(asked)} cells")
    results = [measured(calls, one.arrivals, WARM_SHARE) for calls, one in zip(found.cells, asked, strict=True)]
    return Ran(results, [_longer(profile, found, place) for place in range(len(asked) + 1)])


def _longer(profile: Profile, found: Measured, place: int) -> float:
    """Return how many times as long as the profile says the reference steps took, in the median."""
    steps = [(work, seconds) for at, work, seconds in found.references if at == place]
    if not steps:
        raise PlanRefused(8, "the engine's process ran no reference steps")
    said = profile.steps.predict([work for work, _ in steps])
    return float(np.median(np.array([seconds for _, seconds in steps]) / said))
