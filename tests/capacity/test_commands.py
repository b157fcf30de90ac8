"""The command line as an operator meets it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from capacity.__main__ import main
from capacity.cells import digest_of, line_of, predict
from capacity.child import lines_of
from capacity.errors import PlanRefused
from capacity.simulate import Scene
from capacity.workload import draw
from tests.capacity.profiles import profile, replica, workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "capacity.toml"
QUICK = ("--requests", "80", "--seeds", "2", "--loads", "0.5", "--quiet")


def test_curve_prints_a_page_with_its_warnings_and_draws_the_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, svg = tmp_path / "profile.json", tmp_path / "curve.svg"
    file.write_bytes(msgspec.json.encode(profile(own_clock=True)))
    assert main(["curve", "--profile", str(file), "--workload", str(EXAMPLE), "--svg", str(svg), *QUICK]) == 0
    page = capsys.readouterr().out
    assert "| load | requests/s |" in page and "## Operating point" in page and "simulated" in page
    assert "**Warning.** The profile counts processor seconds" in page
    assert svg.read_text().startswith("<svg") and list(tmp_path.glob("*.part")) == []


def test_curve_gives_scripts_the_same_bytes_every_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, small = tmp_path / "profile.json", tmp_path / "workload.json"
    file.write_bytes(msgspec.json.encode(profile()))
    small.write_bytes(msgspec.json.encode(workload()))
    printed = []
    for _ in range(2):
        assert main(["curve", "--profile", str(file), "--workload", str(small), "--json", *QUICK]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    found = json.loads(printed[0])
    assert found["operating_point"]["mu"]["1"] > 0 and found["steps"][0]["source"] == "measured"


def test_bad_input_is_refused_with_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, bad, svg = tmp_path / "profile.json", tmp_path / "bad.toml", tmp_path / "curve.svg"
    file.write_bytes(msgspec.json.encode(profile(replica=replica(blocks=4))))
    bad.write_text("rate = -1")
    model = ["--model", str(tmp_path), "--out", str(tmp_path / "out.json")]
    for arguments, said in (
        (["curve", "--profile", str(file), "--workload", str(bad)], "step 1"),
        (["curve", "--profile", str(file), "--workload", str(EXAMPLE), "--svg", str(svg)], "step 5"),
        (["curve", "--profile", str(bad), "--workload", str(EXAMPLE)], "step 8"),
        (["calibrate", *model], "no config.json"),
        (["check", "--profile", str(file), "--workload", str(EXAMPLE), *model[:2], "--cpu-clock"], "same clock"),
    ):
        assert main([*arguments, "--quiet"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and said in error and error.count("\n") == 1
    assert not svg.exists() and not (tmp_path / "out.json").exists()


@pytest.mark.deep  # the process imports torch
def test_the_engines_process_says_why_it_failed(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match=r"no config.json there"):
        list(lines_of(["--model", str(tmp_path)], seconds=60))


def test_a_trace_for_the_engine_shares_the_prefixes_that_its_calls_share_and_no_others() -> None:
    mixed = workload(ranks={"8": 0.5, "32": 0.5})
    arrivals = draw(mixed, 4.0, 60, 3)
    line = line_of(mixed, arrivals, "cell", 4)
    assert line["warm"] == [digest_of(mixed, number) for number in range(4)]
    cached = [one["prompt"] for one, asked in zip(line["arrivals"], arrivals, strict=True) if asked.cached]
    assert {tuple(prompt[:16]) for prompt in cached} == {tuple(cached[0][:16])}
    assert len({tuple(prompt[:17]) for prompt in cached}) > 1
    assert [len(one["prompt"]) for one in line["arrivals"]] == [one.prompt for one in arrivals]
    assert {one["adapter"].partition("-")[0] for one in line["arrivals"]} == {"r8", "r32"}


def test_a_prediction_lies_within_its_interval_which_widens_with_the_fits_error() -> None:
    arrivals = draw(workload(), 10.0, 80, 1)
    sure = predict(Scene(profile(), workload()), arrivals)
    quality = msgspec.structs.replace(profile().quality, median=0.08)
    unsure = predict(Scene(profile(quality=quality), workload()), arrivals)
    for name, value in sure.figures.as_dict().items():
        assert value in sure.intervals[name]
    width = {each: one.high - one.low for each, one in sure.intervals.items()}
    wider = {each: one.high - one.low for each, one in unsure.intervals.items()}
    assert all(wider[name] > width[name] for name in width)
