"""Compares the forecast of demand with last week's values and with MSTL, seven days ahead.

    python -m benchmarks.capacity.forecasts [FOLDER] [--origins 8] [--seed 1] [--series 24] [--out FOLDER]

FOLDER: CSV files with the columns timestamp and value, an hour apart or less, such as realAdExchange, realKnownCause,
realTraffic and realTweets of the Numenta Anomaly Benchmark (numenta/NAB); without it, series are made up from the seed.
Every series is forecast from at least eight origins, each time from what lies before the origin alone. Figures:
Σ|error| / Σ values of a week (WAPE), relative error of a week's 99 % hour (peak), share of hours within the 90 %
interval. MSTL needs statsmodels. The exit status is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.capacity import mstl
from benchmarks.capacity.series import Series, made_up, origins_of, read_folder
from capacity.forecast import WEEK, Demand, Forecast, Hours, forecast

LEAST_ORIGINS = 8
OURS, LAST, MSTLS = "forecast", "last week", ("MSTL, logs", "MSTL, levels")
FIGURES = ("wape_median", "wape_mean", "peak_median", "peak_mean")
COVERED = (0.85, 0.95)
_TO_MSTL = 1.05
Errors = dict[str, list[float]]  # predictor's name → error of each origin


def score(series: Series, origins: Sequence[int], ours: Callable[[Demand], Forecast] = forecast) -> dict[str, Any]:
    """Return errors by origin: {"wape", "peak": predictor → errors, "covered": shares}."""
    wape: Errors = {}
    peak: Errors = {}
    covered = []
    for origin in origins:
        before, after = series.values[:origin], series.values[origin : origin + WEEK]
        known = ~np.isnan(after)
        actual = after[known]
        top = max(float(np.quantile(actual, 0.99)), 1e-12)
        found = ours(Demand(series.start, before))
        weeks = {OURS: found.median, LAST: filled(before)[-WEEK:]}
        if mstl.installed():
            weeks |= {name: mstl.week_ahead(filled(before), logs=name.endswith("logs")) for name in MSTLS}
        for name, week in weeks.items():
            highest = found.peak if name == OURS else float(np.quantile(week, 0.99))
            wape.setdefault(name, []).append(float(np.abs(week[known] - actual).sum() / actual.sum()))
            peak.setdefault(name, []).append(abs(highest / top - 1))
        covered.append(float(((actual >= found.low[known]) & (actual <= found.high[known])).mean()))
    return {"wape": wape, "peak": peak, "covered": covered}


def filled(values: Hours) -> Hours:
    """Return the values with each gap filled: by the week before, or the median where no week before has the hour."""
    out = values.copy()
    for at in np.flatnonzero(np.isnan(out)):
        out[at] = out[at - WEEK] if at >= WEEK else np.nanmedian(values)
    return out


def summary(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of all origins of all series, and each series' median WAPE. scores: by series' name"""
    rows: dict[str, dict[str, float]] = {}
    for name in next(iter(scores.values()))["wape"]:
        rows[name] = {}
        for figure in ("wape", "peak"):
            errors = np.concatenate([one[figure][name] for one in scores.values()])
            rows[name] |= {f"{figure}_median": float(np.median(errors)), f"{figure}_mean": float(np.mean(errors))}
    covered = np.concatenate([one["covered"] for one in scores.values()])
    by_series = {
        name: {predictor: float(np.median(errors)) for predictor, errors in one["wape"].items()}
        | {"covered": float(np.mean(one["covered"]))}
        for name, one in scores.items()
    }
    return {"origins": len(covered), "rows": rows, "covered": float(np.mean(covered)), "series": by_series}


def report(data: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every bar is reached. data: as `summary` returns it"""
    rows, series = data["rows"], data["series"]
    lines = [f"{data['origins']} origins of {len(series)} series; errors in %, seven days ahead"]
    lines.append(f"{'':<14}" + "".join(f"{figure.replace('_', ', '):>14}" for figure in FIGURES))
    lines += [f"{name:<14}" + "".join(f"{100 * row[figure]:14.1f}" for figure in FIGURES) for name, row in rows.items()]
    if MSTLS[0] not in rows:
        lines.append("MSTL: left out, statsmodels is not installed")
    lines.append("")
    fine = True
    for figure in FIGURES:
        bars = [(LAST, 1.0)] + [(name, _TO_MSTL) for name in MSTLS if name in rows and figure.startswith("wape")]
        for other, factor in bars:
            reached = rows[OURS][figure] <= factor * rows[other][figure]
            fine = fine and reached
            bar = f"<= {factor:g} x {100 * rows[other][figure]:.1f} % ({other})"
            text = figure.replace("_", ", ")
            lines.append(f"{text:<14}{100 * rows[OURS][figure]:6.1f} %  {bar}{'' if reached else '  MISSED'}")
    low, high = COVERED
    reached = low <= data["covered"] <= high
    words = "" if reached else "  MISSED"
    lines.append(f"{'covered':<14}{100 * data['covered']:6.1f} %  {100 * low:.0f} to {100 * high:.0f} %{words}")
    lines += ["", f"{'WAPE, median':<40}" + "".join(f"{name:>14}" for name in rows) + f"{'covered':>10}"]
    for name, one in series.items():
        figures = "".join(f"{100 * one[predictor]:14.1f}" for predictor in rows)
        lines.append(f"{name:<40}{figures}{100 * one['covered']:10.0f}")
    return lines, fine and reached


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="of CSV files")
    parser.add_argument("--origins", type=int, default=LEAST_ORIGINS, help="for each series")
    parser.add_argument("--seed", type=int, default=1, help="of series that are made up")
    parser.add_argument("--series", type=int, default=24, help="that are made up")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    if options.origins < LEAST_ORIGINS:
        parser.error(f"--origins is at least {LEAST_ORIGINS}")
    about = machine.describe()
    left_out: dict[str, str] = {}
    if options.folder is None:
        several = made_up(options.seed, options.series)
    else:
        several, left_out = read_folder(options.folder, options.origins)
    for name, reason in left_out.items():
        print(f"{name} is left out: {reason}")
    if not several:
        parser.error("no series is left")
    scores = {}
    for number, series in enumerate(several, 1):
        scores[series.name] = score(series, origins_of(series, options.origins))
        print(f"{number} of {len(several)}: {series.name}", file=sys.stderr)
    source = {"seed": options.seed} if options.folder is None else {"folder": options.folder.resolve().name}
    data = summary(scores)
    lines, fine = report(data)
    print("\n".join(lines))
    suite = "forecasts" if options.folder is None else f"forecasts_{options.folder.resolve().name.lower()}"
    folder = options.out or machine.RESULTS / machine.cpu_kind(about)
    print(machine.write_suite(folder, suite, {"machine": about, **source, "left_out": left_out, **data}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
