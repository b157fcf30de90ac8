"""Step 8 from outside: cells of known shapes are run on a replica over HTTP, and steps are fitted to their figures."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np

from capacity.calibrate import LOADS_KEPT, MOST_SECONDS, Progress
from capacity.cells import figures, measured, prompt_tokens
from capacity.errors import PlanRefused
from capacity.fit_cells import Cell, Fitting, Measured, workload_of
from capacity.operating import Effort, highest_rate
from capacity.profile import Profile, Quality, check, current_commit
from capacity.remote import PROMPTS, Facts, Remote, RemoteCall
from capacity.runs import TimedCall
from capacity.simulate import WARM_SHARE, Scene, replay
from capacity.steps import PRIOR, WORST_MEDIAN, StepModel, check_error
from capacity.workload import Arrival, Sample, draw

_PASSES, _CELLS = 3, 11
_SHORTEST, _LONGEST, _PROBE = 32, 512, 48  # tokens of prompts
_MOST_CLIENTS = 256
_OPEN_LOAD, _OPEN_SEEDS = 0.5, (1, 2, 3)
_OPEN_CALLS = (20, 200)
# The seconds are shared: cells of a closed loop, the open one, and a rest for adapters and what runs over.
_CLOSED_SHARE, _OPEN_SHARE, _WARM_SHARE_OF_TIME = 0.7, 0.1, 0.07
# A first call that takes as much longer than the second has waited for its adapter.
_COLD = 1.2


def cells_of(seats: int, long: int, alone: int, adapters: int) -> list[Cell]:
    """Return the cells for a replica with so many seats, and adapters that fit together.

    long, alone: the longest prompts, of many clients and of a single one, who can afford longer ones
    """
    some, half = max(2, seats // 4), max(2, seats // 2)
    cells = [
        Cell(1, 16, 16),
        Cell(1, alone, 4),
        Cell(seats, 16, 10),
        Cell(some, long // 2, 12),
        Cell(half, long, 8),
        Cell(max(2, 3 * seats // 8), long // 4, 12, held=True),
        Cell(max(2, 3 * seats // 4), long // 3, 10, held=True),
    ]
    if adapters:
        cells += [
            Cell(1, alone // 2, 16, min(2, adapters)),
            Cell(seats, 16, 10, min(seats, adapters)),
            Cell(some, long // 2, 12, min(2, adapters)),
            Cell(half, long // 4, 12, min(half, adapters), held=True),
        ]
    return cells


def calibrate_url(
    url: str, *, base: str | None = None, seconds: float, progress: Progress = lambda done, of: None
) -> Profile:
    """Calibrate a running replica within `seconds`. base: its base's name there; None: the first that it lists

    Raises PlanRefused: no replica, no tokens, too little time, or a fit that is no good.
    """
    if not 5 <= seconds <= MOST_SECONDS:
        raise PlanRefused(8, f"a calibration of {seconds:g} s: between 5 and {MOST_SECONDS:g}")
    with Remote(url) as remote:
        return _Calibration(remote, base, seconds, progress).profile()


class _Calibration:
    def __init__(self, remote: Remote, base: str | None, seconds: float, progress: Progress) -> None:
        self.remote, self.seconds, self.progress = remote, seconds, progress
        self.began = time.perf_counter()
        self.facts = remote.facts()
        self.base, self.names = remote.models(base)
        self._number = random.SystemRandom().randrange(PROMPTS)
        self.loads, self.tokens = list[float](), 0

    def profile(self) -> Profile:
        """Measure, fit, and return the profile."""
        usable = self._warm()
        ranks = _ranks(self.remote.facts())
        seats, most = min(self.facts.replica.max_num_seqs, _MOST_CLIENTS), self._affordable()
        long, alone = self._longest(max(2, seats // 2), most), self._longest(1, most)
        ran = self._closed(cells_of(seats, long, alone, usable))
        draft = _draft(self.facts, tuple(sorted(self.loads)[:LOADS_KEPT]))
        fitting = Fitting(draft, ranks)
        model, way = fitting.fit([one for one in ran if not one.cell.held])
        off = fitting.errors([one for one in ran if one.cell.held], model, way)
        off += self._open(fitting.profile(model, way), ranks, usable, alone)
        median, p90 = float(np.median(off)), float(np.percentile(off, 90))
        check_error(median, "figures of cells", ": the machine was too busy, or others use the replica")
        model, way = fitting.fit(ran)
        made = msgspec.structs.replace(
            fitting.profile(model, way),
            residuals=fitting.residuals(ran, model, way),
            quality=Quality(steps=self.tokens, median=median, p90=p90, drift=fitting.drift(ran)),
        )
        check(made, "the calibration")
        return made

    def _warm(self) -> int:
        """Call adapters until they are resident, timing their loads; return how many may be called together."""
        usable = min(len(self.names), self.facts.replica.slots, self.facts.replica.pages)
        self._run([_single(None)] * 3, 1)
        if not usable:
            return 0
        until = time.perf_counter() + _WARM_SHARE_OF_TIME * self.seconds
        for number in range(usable):
            first, second = (self._run([_single(number)], 1)[0] for _ in range(2))
            waited, usual = (call.tokens[0] - call.sent for call in (first, second))
            if waited > _COLD * usual:
                self.loads.append(waited - usual)
            if time.perf_counter() > until:
                usable = number + 1
                break
        if not self.loads:
            raise PlanRefused(8, "every adapter was resident already: start the replica anew, so that loads are timed")
        return usable

    def _affordable(self) -> int:
        """Return the tokens of prompts that a pass of a cell has time for."""
        took = min(call.tokens[0] - call.sent for call in self._run([_single(None, _PROBE)] * 3, 1))
        each = _CLOSED_SHARE * self.seconds / (_PASSES * _CELLS)
        return round(each * _PROBE / took)

    def _longest(self, clients: int, affordable: int) -> int:
        """Return the longest prompt of a cell: as time, context and the pool have room, for all clients at once."""
        pool = self.facts.replica.blocks * self.facts.replica.block_size // clients
        room = (min(self.facts.model.max_len, pool) - 64) // 2
        return max(_SHORTEST, min(_LONGEST, room, affordable // Cell(clients, 1, 1).least))

    def _closed(self, cells: Sequence[Cell]) -> list[Measured]:
        """Run all cells, and again as often as time allows: in a slow minute not all of one cell is slow."""
        each = _CLOSED_SHARE * self.seconds / (_PASSES * len(cells))
        until = self.began + self.seconds * (_CLOSED_SHARE + _WARM_SHARE_OF_TIME)
        found: list[Measured] = []
        took: list[float] = []
        for number in range(_PASSES):
            for place, cell in enumerate(cells):
                began = time.perf_counter()
                if number == 0:
                    if began > until:
                        raise PlanRefused(8, f"{place} of {len(cells)} cells were run: give it more time (--seconds)")
                    arrivals = cell.arrivals(2 * cell.least)
                    calls = self._run(arrivals, cell.clients, least=cell.least, seconds=each)
                    found.append(Measured(cell, arrivals[: len(calls)], [calls]))
                    took.append(time.perf_counter() - began)
                elif began + took[place] > until:
                    return found
                else:
                    found[place].passes.append(self._run(found[place].arrivals, cell.clients))
                self.progress(number * len(cells) + place + 1, _PASSES * len(cells) + 1)
        return found

    def _open(self, profile: Profile, ranks: Mapping[str, float], adapters: int, alone: int) -> list[float]:
        """Predict an open loop and run it; return the errors of its figures."""
        samples = (
            Sample(latency_class="standard", prompt=alone // 4, output=12, weight=2),
            Sample(latency_class="standard", prompt=alone // 2, output=6),
        )
        workload = msgspec.structs.replace(workload_of(adapters, ranks), samples=samples, base_share=0.3)
        scene = Scene(profile, workload)
        rate = _OPEN_LOAD * highest_rate(scene, Effort(seeds=2, requests=400, first_seed=1))
        least, most = _OPEN_CALLS
        arrivals = draw(workload, rate, round(min(most, max(least, rate * _OPEN_SHARE * self.seconds))), 1)
        said = [figures(replay(scene, arrivals, seed)).as_dict() for seed in _OPEN_SEEDS]
        calls = self.remote.open(self._calls(arrivals), [one.at for one in arrivals])
        self.tokens += sum(len(call.tokens) for call in calls)
        told = [{"tokens": call.tokens, "cold": False} for call in calls]
        truth = figures(measured(told, arrivals, WARM_SHARE)).as_dict()
        self.progress(1, 1)
        compared = ("output_rate", "ttft_mean", "ttft_p95", "itl_p50")
        return [abs(statistics.fmean(one[name] for one in said) / truth[name] - 1) for name in compared]

    def _run(
        self, arrivals: Sequence[Arrival], clients: int, *, least: int = 0, seconds: float = float("inf")
    ) -> list[TimedCall]:
        calls = self.remote.closed(self._calls(arrivals), clients, least=least, seconds=seconds)
        self.tokens += sum(len(call.tokens) for call in calls)
        return calls

    def _calls(self, arrivals: Sequence[Arrival]) -> list[RemoteCall]:
        """Return calls whose prompts no earlier call had, so that none is found in the prefix cache."""
        first = self._number
        self._number += len(arrivals)
        return [
            RemoteCall(
                self.base if one.adapter is None else self.names[one.adapter],
                prompt_tokens(one, first + number),
                one.output,
                one.latency_class,
            )
            for number, one in enumerate(arrivals)
        ]


def _single(adapter: int | None, prompt: int = 16) -> Arrival:
    return Arrival(0.0, "standard", prompt, 0, 2, adapter)


def _ranks(facts: Facts) -> dict[str, float]:
    found = {rank: float(count) for rank, count in facts.resident.items() if rank.isdigit() and int(rank) > 0}
    return found or {"16": 1.0}


def _draft(facts: Facts, loads: tuple[float, ...]) -> Profile:
    return Profile(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=current_commit(),
        own_clock=False,
        machine=facts.machine,
        model=facts.model,
        replica=facts.replica,
        coefficients=dict(PRIOR),
        shape=StepModel().shape,
        residuals=StepModel().residuals,
        load_seconds=loads,
        load_speed=1.0,
        probe_read=0.0,
        probe_gemm=0.0,
        quality=Quality(steps=0, median=WORST_MEDIAN, p90=WORST_MEDIAN),
        source="measured over HTTP",
    )
