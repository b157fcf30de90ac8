"""A calibration's driver on a real engine of a tiny model: what it times is what a simulation computes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from serving.about import about
from serving.calibration.adapters import RandomAdapters, digest_of
from serving.calibration.cells import Arrival, Cell, run_cell
from serving.calibration.driver import Driver, SkippingClock
from serving.calibration.grid import Grid, cells
from serving.calibration.machine import probe
from serving.config import ServingConfig
from serving.errors import AdapterUnavailable
from serving.replica import Base, build_engine
from serving.simulation.work import StepWork
from tests.serving.tiny import Tiny

STEPS: list[tuple[StepWork, float]] = []


@pytest.fixture(scope="module")
def driver(tiny: Tiny) -> Iterator[Driver]:
    config = ServingConfig(
        model=tiny.model,
        kv_cache_mb=8,
        adapter_memory_mb=4,
        threads=1,
        dtype="float32",
        device="cpu",
        adapter_slots=4,
        max_num_seqs=4,
        max_batched_tokens=64,
    )
    base = Base.from_dir(tiny.model)
    clock = SkippingClock(own=True)
    engine = build_engine(config, base, RandomAdapters(base.config), clock=clock)
    with torch.inference_mode():
        driver = Driver(engine, clock, lambda work, seconds: STEPS.append((work, seconds)))
        driver.config, driver.base = config, base  # type: ignore[attr-defined]
        yield driver
    engine.adapters.close()


def test_a_pass_times_every_kind_of_step_and_leaves_nothing_behind(driver: Driver) -> None:
    STEPS.clear()
    grid = Grid(driver, (8, 16), seed=1)
    grid.warm_up()
    done = list(grid.pass_over(driver.clock() + 60))
    assert done[-1][0] == done[-1][1] > 10
    works = [work for work, seconds in STEPS if seconds > 0]
    assert len(works) == len(STEPS)
    assert {work.decode_rows for work in works} >= {1, 2, 4}
    assert any(work.rows == 64 and not work.decode_rows for work in works)
    assert any(work.adapters == 4 and work.pages == 4 for work in works)
    assert any(took > 0 and computed == 0 for took, computed, _ in grid.loads)
    assert not driver.busy
    driver.engine.planner.check_integrity()
    assert not any(driver.engine.planner.drafts.drafted.values()), "a plan counts on no drafts"


def test_reference_steps_are_the_same_each_time_and_need_no_adapter(driver: Driver) -> None:
    grid = Grid(driver, (8, 16), seed=1)
    grid.reference()
    seen = []
    for _ in range(2):
        STEPS.clear()
        grid.reference()
        seen.append([work for work, _ in STEPS])
    assert seen[0] == seen[1] and len({work.rows for work in seen[0]}) > 2
    assert not any(work.adapters or work.loading for work in seen[0]) and not driver.busy


def test_a_pass_that_time_cuts_short_is_gone_on_with(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, ran = Grid(driver, (8, 16), seed=1), []

    def run(cell: object) -> None:
        ran.append(cell)
        driver.clock.jump(driver.clock() + 100)

    monkeypatch.setattr(grid, "_run", run)
    count = len(cells(4, 64, driver.engine.max_model_len, 4))
    for _ in range(3):
        list(grid.pass_over(driver.clock() + 100 * count * 0.4))
    assert len(ran) > count and set(ran[:count]) == set(ran)


def test_a_recorded_trace_ends_with_all_of_its_tokens_and_idle_hours_take_no_time(driver: Driver) -> None:
    digest = digest_of(8, 7)
    prompt = tuple(range(20, 50))
    calls = (Arrival(0.0, 0, digest, "a", prompt, 3), Arrival(7200.0, 1, None, "a", prompt, 5))
    began = time.monotonic()
    first, second = run_cell(driver, Cell((), calls))
    assert time.monotonic() - began < 3_600
    assert first.cold and not second.cold
    assert len(first.tokens) == 3 and len(second.tokens) == 5
    assert 7200.0 < second.tokens[0] < 7300.0 and second.tokens == sorted(second.tokens)
    again, _ = run_cell(driver, Cell((digest,), (*calls[:1], calls[1])))
    assert not again.cold and again.cached >= 16


def test_what_a_profile_says_of_the_replica_is_what_the_replica_has(driver: Driver) -> None:
    said = about(driver.config, driver.base, driver.engine)  # type: ignore[attr-defined]
    assert said["replica"]["slots"] == 4 and said["replica"]["max_num_seqs"] == 4  # type: ignore[index]
    assert said["model"]["weight_bytes"] > 0  # type: ignore[index]
    assert min(probe().values()) > 0


def test_the_grid_keeps_within_a_replicas_limits() -> None:
    for cell in cells(max_seqs=8, max_rows=64, max_len=128, slots=2):
        assert cell.decodes <= 8 and cell.prompt <= 64 and cell.cached + cell.prompt <= 120
        assert cell.adapters != "distinct" or cell.decodes <= 2


def test_a_digest_without_a_rank_is_no_adapter(driver: Driver) -> None:
    with pytest.raises(AdapterUnavailable):
        RandomAdapters(driver.base.config).load("unknown")  # type: ignore[attr-defined]
