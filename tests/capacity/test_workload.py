from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capacity.errors import PlanRefused
from capacity.recorded import TraceLine, Usage, UsageBucket, from_trace, from_usage, read_trace
from capacity.workload import Promise, check, draw, read_workload
from tests.capacity.profiles import workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "capacity.toml"
PROMISES = {"interactive": Promise(ttft=1.0, tpot=0.1)}


def test_the_example_is_a_workload_and_its_token_rates_are_its_formulas() -> None:
    found = read_workload(EXAMPLE)
    assert found.output_rate == pytest.approx(4.0 * (0.7 * 24 + 0.2 * 48 + 0.1 * 32))
    assert found.input_rate == pytest.approx(4.0 * (0.7 * 64 + 0.2 * 192 + 0.1 * 384))


@pytest.mark.parametrize("cv2", [0.5, 1.0, 4.0])
def test_drawn_gaps_have_the_rate_and_the_burstiness_that_were_asked_for(cv2: float) -> None:
    times = np.array([one.at for one in draw(workload(cv2=cv2), 10.0, 40_000, 1)])
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(cv2, rel=0.1)


def test_a_faster_trace_of_one_seed_is_the_same_trace_faster() -> None:
    slow, fast = draw(workload(), 1.0, 100, 7), draw(workload(), 4.0, 100, 7)
    assert [one.at / 4 for one in slow] == pytest.approx([one.at for one in fast])
    assert [(one.adapter, one.prompt) for one in slow] == [(one.adapter, one.prompt) for one in fast]


def test_ranks_are_dealt_by_their_shares() -> None:
    mixed = workload(ranks={"8": 0.75, "32": 0.25}, adapters=1000)
    assert sum(mixed.rank_of(number) == 8 for number in range(1000)) == pytest.approx(750, abs=10)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rate": -1.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"cv2": 0.0}, "cv2"),
        ({"alpha": 1.0}, "no run can prove"),
        ({"samples": ()}, "no samples"),
        ({"promises": {}}, "no promise"),
        ({"ranks": {"0": 1.0}}, "rank 0"),
        ({"adapters": -3}, "adapters"),
    ],
)
def test_negative_and_absurd_figures_are_refused_by_name(changes: dict[str, object], said: str) -> None:
    with pytest.raises(PlanRefused, match=said) as refused:
        check(workload(**changes))
    assert refused.value.step == 1


def test_files_that_are_no_workload_are_refused(tmp_path: Path) -> None:
    for name, text in (("a.toml", "rate = ["), ("b.toml", "rate = 'much'"), ("c.json", "{}"), ("d.json", "")):
        (tmp_path / name).write_text(text)
        with pytest.raises(PlanRefused):
            read_workload(tmp_path / name)
    with pytest.raises(PlanRefused, match="No such file"):
        read_workload(tmp_path / "none.toml")


def test_usage_counts_refused_calls_and_says_what_it_does_not_know() -> None:
    bucket = UsageBucket(latency_class="interactive", prompt=50, cached=0, output=10, calls=900)
    usage = Usage(seconds=86_400, buckets=(bucket,), calls_by_adapter=(400, 200, 133), refused=100, base_calls=167)
    found, warnings = from_usage(usage, PROMISES, alpha=0.95)
    assert found.rate == pytest.approx(1000 / 86_400) and found.alpha == 0.95
    assert found.zipf == pytest.approx(1.0, abs=0.05) and found.adapters == 3
    assert any("single day" in said for said in warnings) and any("bursts are unknown" in said for said in warnings)


def test_usage_without_a_call_is_refused() -> None:
    with pytest.raises(PlanRefused, match="no calls"):
        from_usage(Usage(seconds=86_400, buckets=()), PROMISES)


def test_a_trace_gives_back_its_rate_and_burstiness(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    times = [one.at for one in draw(workload(cv2=3.0), 5.0, 4000, 2)]
    file.write_text("\n".join(f'{{"at": {at}, "prompt": 10, "output": 4, "adapter": "a"}}' for at in times))
    found = from_trace(read_trace(file), PROMISES)
    assert found.rate == pytest.approx(5.0, rel=0.1) and found.cv2 == pytest.approx(3.0, rel=0.25)
    file.write_text('{"at": 1}')
    with pytest.raises(PlanRefused, match="line 1"):
        read_trace(file)
    with pytest.raises(PlanRefused, match="two calls"):
        from_trace([TraceLine(at=1.0, prompt=1, output=1)] * 2, PROMISES)
