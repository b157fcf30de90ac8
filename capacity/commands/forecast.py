"""Forecast demand by hour, with intervals, and with the errors that the same rule made on the past."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capacity.charts import Line, line_chart, standalone
from capacity.commands.output import add_output_flags, emit, write
from capacity.errors import PlanRefused
from capacity.forecast import Event, Forecast, forecast
from capacity.usage import read_usage


def add_events(parser: argparse.ArgumentParser) -> None:
    """Add the flag of changes that are known beforehand."""
    parser.add_argument(
        "--event",
        action="append",
        default=[],
        metavar="START/END/FACTOR",
        help="calls from START to END (ISO 8601, UTC) are multiplied, such as 2026-12-01/2026-12-03/2.5",
    )


def read_events(texts: Sequence[str]) -> list[Event]:
    """Parse events. Raises PlanRefused."""
    events = []
    for text in texts:
        try:
            start, end, factor = text.split("/")
            events.append(Event(_moment(start), _moment(end), float(factor)))
        except ValueError:
            raise PlanRefused(3, f"--event {text}: as START/END/FACTOR, such as 2026-12-01/2026-12-03/2.5") from None
    return events


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--usage", type=Path, required=True, help="the platform's usage file")
    parser.add_argument("--weeks", type=int, default=4, help="1 to 13")
    parser.add_argument("--out", type=Path, help="folder for a picture of each base")
    add_events(parser)
    add_output_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Forecast each base that was asked."""
    usage, events = read_usage(options.usage), read_events(options.event)
    asked = [
        one
        for one, base in sorted(usage.bases.items())
        if any(sum(hours.served) + sum(hours.refused) for hours in base.classes.values())
    ]
    if not asked:
        raise PlanRefused(3, "the usage has no calls: there is nothing to forecast from")
    rows = {one: forecast(usage.demand(one), weeks=options.weeks, events=events) for one in asked}
    found = [_document(one, usage.bases[one].name, usage.refused_share(one), row) for one, row in rows.items()]
    if options.out is not None:
        for one, row in rows.items():
            write(options.out / f"demand-{one[:12]}.svg", standalone(_picture(usage.bases[one].name, row)))
    emit({"bases": found}, _markdown(found), as_json=options.json)
    return 0


def _document(base: str, name: str, refused: float, found: Forecast) -> dict[str, Any]:
    back = found.backtest
    return {
        "base": base,
        "name": name,
        "start": found.start.isoformat(),
        "median": [round(value, 2) for value in found.median.tolist()],
        "low": [round(value, 2) for value in found.low.tolist()],
        "high": [round(value, 2) for value in found.high.tolist()],
        "peak": round(found.peak, 2),
        "peak_high": round(found.peak_high, 2),
        "refused_share": round(refused, 4),
        "backtest": None
        if back is None
        else {
            "origins": back.origins,
            "wape": round(back.wape, 4),
            "last_week_wape": round(back.last_week_wape, 4),
            "peak": round(back.peak, 4),
            "last_week_peak": round(back.last_week_peak, 4),
            "covered": round(back.covered, 4),
        },
        "warnings": list(found.warnings),
    }


def _picture(name: str, found: Forecast) -> str:
    hours = range(len(found.median))
    return line_chart(
        f"Calls an hour for {name}",
        [Line("forecast", list(zip(hours, found.median.tolist(), strict=True)))],
        x_label="hours from now",
        y_label="calls/h",
        fan=list(zip(hours, found.low.tolist(), found.high.tolist(), strict=True)),
    )


def _markdown(found: Sequence[dict[str, Any]]) -> str:
    lines = ["# Demand", "", "| base | day | calls | least | most |", "|---|---|---|---|---|"]
    for one in found:
        for day in range(len(one["median"]) // 24):
            sums = [sum(one[name][24 * day : 24 * day + 24]) for name in ("median", "low", "high")]
            lines.append(f"| {one['name']} | {day + 1} | " + " | ".join(f"{value:,.0f}" for value in sums) + " |")
    lines += ["", "## On the past, seven days ahead", ""]
    for one in found:
        back = one["backtest"]
        lines += [f"> {words}" for words in one["warnings"]]
        if back is None:
            lines.append(f"- {one['name']}: under four weeks of history, so nothing to test on.")
        else:
            lines.append(
                f"- {one['name']}, {back['origins']} weeks: off by {100 * back['wape']:.1f} % of all calls (last week "
                f"again: {100 * back['last_week_wape']:.1f} %), busiest hours by {100 * back['peak']:.1f} % "
                f"({100 * back['last_week_peak']:.1f} %); {100 * back['covered']:.0f} % inside the interval."
            )
    return "\n".join(lines) + "\n"
