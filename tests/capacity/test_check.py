"""A check knows a neighbour's minute from a machine that is another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from capacity.cells import predict
from capacity.check import Asked, Ran, check
from capacity.profile import Profile
from capacity.render import check_markdown
from capacity.simulate import Scene, replay
from capacity.steps import PRIOR, SHARES
from capacity.workload import draw
from tests.capacity.profiles import profile, workload


def test_an_interval_reaches_as_far_as_the_machine_swung_beside_the_run() -> None:
    arrivals, scene = draw(workload(), 10.0, 80, 1), Scene(profile(), workload())
    steady, swung = predict(scene, arrivals), predict(scene, arrivals, (0.8, 1.25))
    assert predict(scene, arrivals, (1.0, 1.0)) == steady and swung.figures == steady.figures
    for name in ("ttft_mean", "itl_p50"):
        one, other = steady.intervals[name], swung.intervals[name]
        assert other.low < 0.9 * one.low and 1.1 * one.high < other.high


class Swinging:
    """An engine whose steps take so many times as long in each cell. told: whether its reference steps do, too"""

    most_adapters: int | None = None
    unseen = frozenset({"hit"})

    def __init__(self, *times: float, told: bool = True) -> None:
        self.times, self.told = times, told

    def run(self, profile: Profile, asked: Sequence[Asked], *, seconds: float) -> Ran:
        results = []
        for one, factor in zip(asked, self.times, strict=True):
            slow = profile.steps.scaled({name: factor for name in PRIOR if name not in SHARES})
            results.append(replay(replace(one.scene, model=slow), one.arrivals, 99))
        return Ran(results, [*self.times, 1.0] if self.told else [1.0] * (len(asked) + 1))


def test_a_check_excuses_a_neighbours_minute_and_no_machine_that_is_another_one() -> None:
    def latency_of(engine: Swinging) -> list[bool]:
        result = check(profile(), workload(), engine, count=3, seconds=1.5)
        return [cell.covered()["itl_p50"] for cell in result.cells]

    assert latency_of(Swinging(1.0, 1.5, 1.0)) == [True] * 3
    assert latency_of(Swinging(1.0, 1.5, 1.0, told=False)) == [True, False, True]
    always = check(profile(), workload(), Swinging(1.5, 1.5, 1.5), count=3, seconds=1.5)
    assert not always.fine
    assert "1.00–1.00 ×" in check_markdown(always) and "does not hold" in check_markdown(always)
