"""The pictures of a plan, each with the table of its figures."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from capacity.base_plan import BasePlan
from capacity.charts import Limit, Line, line_chart, stacked_bar, tornado_chart
from capacity.plan import Plan
from capacity.results import Interval
from capacity.wording import amount, figure

_GB = 1e9
_DAY = 24


def figures(plan: Plan) -> list[dict[str, Any]]:
    """Return every picture with title, note and table."""
    own = [one for base in plan.bases for one in (_demand(base), _curve(base), _point(base), _memory(base))]
    return [*own, _levels(plan), _tornado(plan)]


def _demand(base: BasePlan) -> dict[str, Any]:
    days = [hour / _DAY for hour in range(len(base.demand.median))]
    median, low, high = (values / 3600 for values in (base.demand.median, base.demand.low, base.demand.high))
    bears = base.chosen.rate(max(1, base.replicas)) * base.replicas
    first = base.demand.start.date()
    return _figure(
        f"demand-{base.base[:12]}",
        f"Demand for {base.name}, with what the fleet bears",
        "The line is the forecast, the band its 90 % interval; the fleet is planned for the upper edge. The table adds "
        "up the hours of each day (UTC).",
        line_chart(
            f"Calls per second for {base.name} in the coming weeks",
            [Line("forecast", list(zip(days, median.tolist(), strict=True)))],
            x_label=f"days from {first.day} {first:%B %Y}",
            y_label="calls/s",
            fan=list(zip(days, low.tolist(), high.tolist(), strict=True)),
            limits=[Limit("the fleet bears", bears)] if base.replicas else [],
        ),
        ("Day", "Calls, forecast", "Lower ends", "Upper ends"),
        [
            (
                f"{first + datetime.timedelta(days=day):%a %d %b}",
                *(figure(values[24 * day : 24 * day + 24].sum() * 3600) for values in (median, low, high)),
            )
            for day in range(len(days) // 24)
        ],
    )


def _curve(base: BasePlan) -> dict[str, Any]:
    points = [(one.rate, one.ttft.p95) for one in base.curve]
    return _figure(
        f"curve-{base.base[:12]}",
        f"Wait for the first token, one replica of {base.name} on {base.chosen.accelerator}",
        "19 of 20 calls wait less than the line. Load is the rate over the highest rate at which all calls are served.",
        line_chart(
            "Time to the first token against calls per second",
            [Line("95 % of first tokens within", points, dots=points)],
            x_label="calls/s of one replica",
            y_label="s, 95 % of calls",
            limits=[Limit(f"promised, {name}", one.ttft) for name, one in sorted(base.workload.promises.items())],
        ),
        ("Calls/s", "Load", "Within the promise", "First token p50 / p95 / p99, s", "Token p50 / p99, ms", "Busy"),
        [
            (
                figure(one.rate),
                f"{100 * one.load:.0f} %",
                within(one.attainment),
                f"{one.ttft.p50:,.2f} / {one.ttft.p95:,.2f} / {one.ttft.p99:,.2f}",
                f"{1e3 * one.itl.p50:.0f} / {1e3 * one.itl.p99:.0f}",
                f"{100 * one.busy:.0f} %",
            )
            for one in base.curve
        ],
    )


def _point(base: BasePlan) -> dict[str, Any]:
    kept = [(one.rate, 100 * one.attainment.value) for one in base.curve]
    fan = [(one.rate, 100 * one.attainment.low, 100 * one.attainment.high) for one in base.curve]
    single = base.chosen.point.points.get(1)
    chosen = (single.rate, 100 * single.attainment.value) if single is not None else None
    return _figure(
        f"point-{base.base[:12]}",
        f"Calls within the promise, one replica of {base.name} on {base.chosen.accelerator}",
        "The band is the 90 % interval of a sketch; the large dot is the operating point. "
        "The table shows that busy time is no load, and what bursts do (cv: spread of the gaps over their mean).",
        line_chart(
            "Share of calls within the promise against calls per second",
            [Line("within the promise", kept, chosen=chosen)],
            x_label="calls/s of one replica",
            y_label="% of calls",
            fan=fan,
            limits=[Limit(f"promised, {100 * base.workload.alpha:g} %", 100 * base.workload.alpha)],
            from_zero=False,
        ),
        ("Load", "Busy", "Within the promise, calls at random (cv 1)", "In bursts (cv 2)"),
        [
            (f"{100 * load:.0f} %", f"{100 * busy:.0f} %", f"{100 * calm:.1f} %", f"{100 * wild:.1f} %")
            for load, busy, calm, wild in base.trap
        ],
    )


def _memory(base: BasePlan) -> dict[str, Any]:
    kinds = {name: size for name, size in base.chosen.memory.kinds().items() if size > 0}
    return _figure(
        f"memory-{base.base[:12]}",
        f"Memory of one replica, {base.name} on {base.chosen.accelerator}",
        "",
        stacked_bar("Memory by purpose", {name: size / _GB for name, size in kinds.items()}, "GB"),
        ("Purpose", "GB", "Share"),
        [(name, f"{size / _GB:.2f}", f"{100 * size / sum(kinds.values()):.0f} %") for name, size in kinds.items()],
    )


def _levels(plan: Plan) -> dict[str, Any]:
    names = {base.base: base.name for base in plan.bases}
    kind_of = {price.name: price.accelerator for price in plan.inputs.prices.prices}
    rows, steps, at = [], [], 0.0
    for place, block in enumerate(plan.blocks):
        demand = ", ".join(f"{names[base]} {figure(value)}" for base, value in sorted(block.demand.items()))
        counts: dict[tuple[str, str], int] = {}
        for (base, offer, level), number in sorted(plan.fleet.replicas.items()):
            if level == place:
                key = names[base], kind_of[offer]
                counts[key] = counts.get(key, 0) + number
        replicas = ", ".join(f"{number} × {name} on {kind}" for (name, kind), number in sorted(counts.items()))
        machines = ", ".join(
            f"{number} × {offer}" for (offer, level), number in sorted(plan.fleet.machines.items()) if level == place
        )
        total = sum(block.demand.values())
        steps += [(at, total), (at + block.hours, total)]
        at += block.hours
        rows.append((place + 1, f"{block.hours:.0f}", demand, replicas, machines))
    return _figure(
        "fleet",
        "Fleet by level of demand",
        "The hours of the plan, sorted by demand and cut into levels: each level has the machines of its busiest hour.",
        line_chart(
            "Calls per second by level, the busiest hours first",
            [Line("demand", steps)],
            x_label="hours, the busiest first",
            y_label="calls/s",
        ),
        ("Level", "Hours", "Calls/s", "Replicas", "Machines"),
        rows,
    )


def _tornado(plan: Plan) -> dict[str, Any]:
    currency = plan.inputs.prices.currency
    bars = [(one.name, _units(one.smaller), _units(plan.fleet.cost), _units(one.greater)) for one in plan.swings]
    return _figure(
        "tornado",
        "Cost when an input is 20 % smaller or greater",
        "Machines come in whole numbers, so that a small change may cost nothing.",
        tornado_chart("Cost of the plan by input", bars, currency),
        ("Input", "20 % smaller", "20 % greater"),
        [(one.name, *(_words(value, currency) for value in (one.smaller, one.greater))) for one in plan.swings],
    )


def _figure(
    name: str, title: str, note: str, svg: str, head: Sequence[str], rows: Sequence[Sequence[object]]
) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "note": note,
        "svg": svg,
        "head": list(head),
        "rows": [[str(cell) for cell in row] for row in rows],
    }


def within(share: Interval) -> str:
    """Return a share with its interval, in percent."""
    return f"{100 * share.value:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _units(micro: int | None) -> float:
    return float("inf") if micro is None else micro / 1e6


def _words(micro: int | None, currency: str) -> str:
    return "no fleet serves" if micro is None else amount(micro, currency)
