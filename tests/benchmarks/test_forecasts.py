"""The comparison of forecasts: reads public series, shows the past alone, and misses its bars for wrong forecasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import machine, results
from benchmarks.capacity import forecasts, mstl
from benchmarks.capacity.series import LeftOut, Series, made_up, origins_of, read_csv, read_folder
from capacity.forecast import WEEK, Demand, Forecast, forecast

SERIES = made_up(seed=7, count=3)
Change = Callable[[Forecast], Forecast]


@pytest.fixture(autouse=True)
def _without_statsmodels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mstl, "installed", lambda: False)


def written(folder: Path, rows: list[str], name: str = "calls.csv") -> Path:
    """Write a CSV file of rows under the usual head."""
    path = folder / name
    path.write_text("\n".join(["timestamp,value", *rows]) + "\n")
    return path


def judged(change: Change = lambda found: found) -> tuple[list[str], bool]:
    """Return the report on a forecast that knows the future, after `change`."""

    def known(series: Series) -> Callable[[Demand], Forecast]:
        def ahead(history: Demand) -> Forecast:
            first = len(history.calls)
            week = series.values[first : first + WEEK]
            low = np.where(np.arange(WEEK) % 10 == 0, week + 1, week)  # nine hours of ten are inside
            start = history.start + timedelta(hours=first)
            peak = float(np.quantile(week, 0.99))
            return change(Forecast(start, week, low, np.maximum(low, week), peak, peak, None))

        return ahead

    scores = {one.name: forecasts.score(one, origins_of(one, 8), known(one)) for one in SERIES}
    return forecasts.report(forecasts.summary(scores))


def test_a_right_forecast_reaches_every_bar() -> None:
    lines, fine = judged()
    assert fine and not any("MISSED" in line for line in lines)
    assert any("statsmodels is not installed" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        (lambda found: replace(found, median=2.5 * found.median), {"wape, median", "wape, mean"}),
        (lambda found: replace(found, median=np.roll(found.median, 12)), {"wape, median", "wape, mean"}),
        (lambda found: replace(found, peak=3 * found.peak), {"peak, median", "peak, mean"}),
        (lambda found: replace(found, low=found.low + 1), {"covered"}),
        (lambda found: replace(found, low=0 * found.low), {"covered"}),
    ],
    ids=["too much", "half a day late", "too high a peak", "too narrow", "too wide"],
)
def test_a_wrong_forecast_misses_its_bars(change: Change, missed: set[str]) -> None:
    lines, fine = judged(change)
    assert not fine
    assert {line[:14].strip() for line in lines if line.endswith("MISSED")} == missed


def test_the_shipped_forecast_sees_the_past_alone_and_beats_last_week() -> None:
    series, seen = SERIES[0], []

    def ours(history: Demand) -> Forecast:
        seen.append(len(history.calls))
        return forecast(history)

    origins = origins_of(series, 8)[::3]
    scores = forecasts.score(series, origins, ours)
    assert seen == list(origins)
    rows = forecasts.summary({series.name: scores})["rows"]
    assert rows["forecast"]["wape_mean"] < rows["last week"]["wape_mean"]


def test_mstl_is_a_bar_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def flat(history: np.ndarray, *, logs: bool) -> np.ndarray:
        given.append((np.isnan(history).any(), logs))
        return np.full(WEEK, history.mean())

    monkeypatch.setattr(mstl, "installed", lambda: True)
    monkeypatch.setattr(mstl, "week_ahead", flat)
    lines, fine = judged()
    assert fine and {logs for _, logs in given} == {True, False} and not any(gap for gap, _ in given)
    row: dict[str, Any] = dict.fromkeys(forecasts.FIGURES, 0.1)
    data = {
        "origins": 8,
        "covered": 0.9,
        "series": {},
        "rows": {"forecast": row, "last week": row, "MSTL, logs": row, "MSTL, levels": row | {"wape_mean": 0.09}},
    }
    lines, fine = forecasts.report(data)
    assert not fine and [line for line in lines if "MISSED" in line] == [
        "wape, mean      10.0 %  <= 1.05 x 9.0 % (MSTL, levels)  MISSED"
    ]


def test_a_file_is_read_by_hours_and_lost_hours_are_gaps(tmp_path: Path) -> None:
    rows = ["2026-06-01 00:10:00,4", "2026-06-01 00:40:00,6", "2026-06-01 03:00:00+01:00,9", "2026-06-01 04:59:59,1"]
    series = read_csv(written(tmp_path, rows))
    assert series.start == datetime(2026, 6, 1, tzinfo=UTC)
    assert np.array_equal(series.values, [5, np.nan, 9, np.nan, 1], equal_nan=True)
    assert np.array_equal(forecasts.filled(series.values), [5, 5, 9, 5, 1])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["2026-06-01,-1"], "not negative"),
        (["2026-06-01,nan"], "finite"),
        (["today,1"], "line 2"),
        ([], "no rows"),
        (["2026-06-01,1", "2056-06-01,1"], "10 years"),
    ],
)
def test_a_file_that_is_no_demand_is_left_out(tmp_path: Path, rows: list[str], words: str) -> None:
    with pytest.raises(LeftOut, match=words):
        read_csv(written(tmp_path, rows))


def test_a_folder_says_what_it_left_out_and_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_folder(tmp_path, 8)
    start = datetime(2026, 6, 1)
    hours = [f"{start + timedelta(hours=hour)},{hour % 24}" for hour in range(35 * 24)]
    written(tmp_path, hours, "long.csv")
    written(tmp_path, hours[24:], "short.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    kept, left_out = read_folder(tmp_path, 8)
    assert [one.name for one in kept] == ["long"]
    assert left_out == {
        "short": "it has 34 days, and 8 origins need 35",
        "other": "it has no columns timestamp and value",
    }
    assert origins_of(kept[0], 8) == list(range(21 * 24, 29 * 24, 24))


def test_a_seed_makes_the_same_series_up() -> None:
    again, other = made_up(7, 3), made_up(8, 3)
    assert all((one.values == two.values).all() for one, two in zip(SERIES, again, strict=True))
    assert all((one.values != two.values).any() for one, two in zip(SERIES, other, strict=True))
    assert all(len(origins_of(one, 8)) == 8 and one.values.min() >= 0 for one in SERIES)


def test_the_page_of_results_shows_the_table(tmp_path: Path) -> None:
    row = dict.fromkeys(forecasts.FIGURES, 0.25)
    data = {"origins": 8, "covered": 0.9, "rows": {"forecast": row, "last week": row}, "series": {}, "seed": 1}
    file = machine.write_suite(tmp_path, "forecasts_nab", data)
    assert "8 origins of 0 series" in results.RENDERERS["forecasts"](file)
