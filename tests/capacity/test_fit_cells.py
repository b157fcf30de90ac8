"""Steps that are fitted to figures from outside: from cells whose steps are known, because they were simulated."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from capacity.calibrate_url import cells_of
from capacity.closed_loop import figures_of, run_closed, starting
from capacity.fit_cells import Cell, Fitting, Measured, workload_of
from capacity.profile import Profile
from capacity.runs import TimedCall
from capacity.simulate import Scene
from capacity.steps import PRIOR, StepModel
from tests.capacity.profiles import profile, replica

RANKS = {"16": 1.0}
WAY = 3e-3
# A machine that is no multiple of the prior: its steps are cheap, its rows and adapters dear.
TRUE = StepModel().scaled({"weights": 0.4, "row": 1.5, "step": 2.0, "decode_row": 4.0, "adapter": 5.0, "page": 0.3})


def draft() -> Profile:
    return profile(source="measured over HTTP", probe_read=0.0, probe_gemm=0.0, replica=replica(max_num_seqs=8))


def ran(cell: Cell, seed: int, noise: float = 0.02) -> Measured:
    """Return a cell as a replica with TRUE's steps and noisy tokens would have been seen."""
    chance = np.random.default_rng(seed)
    arrivals = cell.arrivals(cell.least)
    scene = Scene(draft(), workload_of(cell.adapters, RANKS), model=TRUE)
    passes = []
    for _ in range(2):
        calls = run_closed(scene, arrivals, cell.clients, WAY).calls
        late = [np.sort(np.array(call.tokens) + chance.exponential(noise * 8e-3, len(call.tokens))) for call in calls]
        passes.append([TimedCall(call.sent, times.tolist()) for call, times in zip(calls, late, strict=True)])
    return Measured(cell, arrivals, passes)


@pytest.fixture(scope="module")
def cells() -> list[Measured]:
    return [ran(cell, number) for number, cell in enumerate(cells_of(8, 300, 300, 6))]


def test_a_closed_loop_is_made_of_its_steps_and_of_the_way_to_the_replica() -> None:
    cell = Cell(3, 40, 8)
    run = run_closed(Scene(draft(), workload_of(0, RANKS)), cell.arrivals(12), 3, WAY)
    assert [len(call.tokens) for call in run.calls] == [one.output for one in cell.arrivals(12)]
    seconds = run.ends - run.starts
    assert np.all(seconds > 0) and np.all(run.starts[1:] >= run.ends[:-1] - 1e-9)
    for figure in figures_of(run.calls, 3).values():
        weights, idle = figure.steps(run)
        assert weights @ seconds + idle == pytest.approx(figure.value, rel=1e-6)
    assert run.calls[0].tokens[0] >= WAY


@pytest.mark.parametrize("clients", [1, 7, 24])
def test_clients_start_one_after_the_other(clients: int) -> None:
    """All at once they would be one step of a simulated replica, and many of a real one."""
    cell = Cell(clients, 20, 90)  # so long that none has a second call while others start
    made = msgspec.structs.replace(draft(), replica=replica(max_num_seqs=32))
    calls = run_closed(Scene(made, workload_of(0, RANKS)), cell.arrivals(2 * clients), clients, WAY).calls
    first = calls[:clients]
    for call in first:
        assert sum(other.sent <= call.sent < other.tokens[0] for other in first) <= starting(clients)
    assert starting(clients) == max(1, clients // 8)
    assert len(calls) == 2 * clients and all(len(call.tokens) > 1 for call in calls)


def test_a_fit_finds_steps_that_predict_cells_it_did_not_see(cells: list[Measured]) -> None:
    fitting = Fitting(draft(), RANKS)
    model, way = fitting.fit([one for one in cells if not one.cell.held])
    off = fitting.errors([one for one in cells if one.cell.held], model, way)
    prior = fitting.errors([one for one in cells if one.cell.held], StepModel(), WAY)
    assert np.median(off) < 0.03 < np.median(prior) and max(off) < 0.15
    assert way == pytest.approx(WAY, rel=0.5)
    assert model.coefficients.keys() == PRIOR.keys()


def test_the_noise_of_single_steps_is_kept(cells: list[Measured]) -> None:
    noise = Fitting(draft(), RANKS).residuals(cells, TRUE, WAY)
    assert list(noise) == sorted(noise) and 0.001 < np.std(noise) < 0.3 and abs(np.median(noise)) < 0.02


def test_a_slow_pass_is_no_figure_and_is_told(cells: list[Measured]) -> None:
    cell, calls = cells[0].cell, cells[0].passes[0]
    slow = [TimedCall(1.3 * call.sent, [1.3 * at for at in call.tokens]) for call in calls]
    one = Measured(cell, cells[0].arrivals, [calls, calls, slow])
    assert one.figures() == Measured(cell, cells[0].arrivals, [calls]).figures()
    assert Fitting.drift([one]) == pytest.approx(0.3)
    assert Fitting.drift([Measured(cell, cells[0].arrivals, [slow])]) == 0.0
