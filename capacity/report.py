"""A plan as JSON, Markdown and pictures. The same plan gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capacity.base_plan import BasePlan
from capacity.charts import Limit, Line, line_chart, stacked_bar, tornado_chart
from capacity.cost import amount
from capacity.last_steps import fleet_step, money_step
from capacity.plan import Plan, surest
from capacity.results import Interval, Step
from capacity.targets import targets_of

FORMAT = 1
_GB = 1e9


def document(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values: sentences, figures with their tables, steps, targets, and what a review needs."""
    last = (fleet_step(plan), money_step(plan))
    return {
        "format": FORMAT,
        "made_on": plan.inputs.today.isoformat(),
        "check_by": plan.check_by.isoformat(),
        "commit": plan.inputs.commit,
        "usage_sha256": plan.inputs.usage.digest,
        "currency": plan.inputs.prices.currency,
        "source": surest(plan),
        "summary": _summary(plan),
        "warnings": list(plan.warnings),
        "figures": [*(one for base in plan.bases for one in _base_figures(base)), *_plan_figures(plan)],
        "steps": [
            *(_step(one, base.name) for base in plan.bases for one in base.steps),
            *(_step(one, "") for one in last),
        ],
        "targets": targets_of(plan),
        "promised": [_promised(base) for base in plan.bases],
    }


def markdown(found: Mapping[str, Any]) -> str:
    """Return a document as a page of Markdown. Pictures are files beside it, called as their figures."""
    lines = [f"# Plan of the fleet, {found['made_on']}", "", *(f"{words}\n" for words in found["summary"])]
    lines += [f"> **Note.** {words}" for words in found["warnings"]]
    lines += ["", f"To be checked again by {found['check_by']}: `python -m capacity review`.", ""]
    for figure in found["figures"]:
        lines += [f"## {figure['title']}", "", f"![{figure['title']}]({figure['name']}.svg)", ""]
        lines += _table(figure["head"], figure["rows"])
    lines += ["## The 13 steps", ""]
    for step in found["steps"]:
        of = f", {step['of']}" if step["of"] else ""
        lines += [f"### {step['number']}. {step['title']}{of}", "", f"{step['result']} *({step['source']})*", ""]
        lines += [f"`{step['formula']}`", ""]
        lines += [f"- {name}: {value}" for name, value in step["inputs"].items()]
        lines += ["", *(f"> {words}" for words in step["warnings"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(plan: Plan) -> list[str]:
    currency = plan.inputs.prices.currency
    weeks = "week" if plan.inputs.terms.weeks == 1 else f"{plan.inputs.terms.weeks} weeks"
    high = "no fleet serves at the slow end" if plan.cost_high is None else amount(plan.cost_high, currency)
    sentences = [
        f"The fleet for the next {weeks} costs {amount(plan.fleet.cost, currency)}, between "
        f"{amount(plan.cost_low, currency)} and {high} if replicas are as much faster or slower as they may be.",
    ]
    for base in plan.bases:
        sentences.append(
            f"{base.name}: {base.replicas} {'replica' if base.replicas == 1 else 'replicas'} in the busiest hours, on "
            f"{base.chosen.accelerator}, for up to {base.demand.high.max() / 3600:.3g} calls a second."
        )
    share = plan.money.share
    if share is not None and share < 0:
        sentences.append(
            f"At today's prices {amount(-plan.money.net, currency)} are missing: the machines cost more than what is "
            f"left of {amount(plan.money.revenue, currency)} that were sold."
        )
    elif share is not None:
        sentences.append(
            f"At today's prices {amount(plan.money.net, currency)} are left, {100 * share:.1f} % of the sales."
        )
    sentences.append(f"The plan is as sure as its weakest step: {surest(plan)}.")
    return sentences


def _base_figures(base: BasePlan) -> list[dict[str, Any]]:
    key = base.base[:12]
    hours = list(range(len(base.demand.median)))
    median, low, high = (values / 3600 for values in (base.demand.median, base.demand.low, base.demand.high))
    bears = base.chosen.rate(max(1, base.replicas)) * base.replicas
    points = [(one.rate, 1e3 * one.ttft.p95) for one in base.curve]
    kept = [(one.rate, 100 * one.attainment.value) for one in base.curve]
    mu = base.chosen.point.mu[1] if 1 in base.chosen.point.mu else base.chosen.rate(1)
    kinds = base.chosen.memory.kinds()
    return [
        _figure(
            f"demand-{key}",
            f"Demand for {base.name}, with what the fleet bears",
            line_chart(
                f"Calls a second for {base.name} in the coming weeks",
                [Line("forecast", list(zip(hours, median.tolist(), strict=True)))],
                x_label="hours from now",
                y_label="calls/s",
                fan=list(zip(hours, low.tolist(), high.tolist(), strict=True)),
                limits=[Limit("the fleet bears", bears)] if base.replicas else [],
            ),
            ("Day", "Calls", "Least", "Most"),
            [
                (day + 1, *(f"{values[24 * day : 24 * day + 24].sum() * 3600:,.0f}" for values in (median, low, high)))
                for day in range(len(hours) // 24)
            ],
        ),
        _figure(
            f"curve-{key}",
            f"Latency against load, one replica of {base.name} on {base.chosen.accelerator}",
            line_chart(
                "Time to the first token against calls a second",
                [Line("95 % of first tokens within", points, dots=points)],
                x_label="calls/s",
                y_label="ms",
                limits=[Limit(f"promised, {name}", 1e3 * one.ttft) for name, one in base.workload.promises.items()],
            ),
            (
                "Calls/s",
                "Load",
                "Within the promise",
                "First token p50 / p95 / p99, ms",
                "A token p50 / p99, ms",
                "Busy",
            ),
            [
                (
                    f"{one.rate:.3g}",
                    f"{one.load:.2f}",
                    _within(one.attainment),
                    f"{1e3 * one.ttft.p50:,.0f} / {1e3 * one.ttft.p95:,.0f} / {1e3 * one.ttft.p99:,.0f}",
                    f"{1e3 * one.itl.p50:.1f} / {1e3 * one.itl.p99:.1f}",
                    f"{100 * one.busy:.0f} %",
                )
                for one in base.curve
            ],
        ),
        _figure(
            f"point-{key}",
            f"Calls within the promise against load, {base.name} on {base.chosen.accelerator}",
            line_chart(
                "Share of calls within the promise against calls a second",
                [Line("within the promise", kept, chosen=(mu, 100 * base.workload.alpha))],
                x_label="calls/s",
                y_label="%",
                limits=[Limit("promised", 100 * base.workload.alpha)],
            ),
            ("Load", "Busy", "Within the promise, Poisson", "Within the promise, cv 2"),
            [
                (f"{load:.2f}", f"{100 * busy:.0f} %", f"{100 * calm:.1f} %", f"{100 * wild:.1f} %")
                for load, busy, calm, wild in base.trap
            ],
        ),
        _figure(
            f"memory-{key}",
            f"Memory of one replica, {base.name} on {base.chosen.accelerator}",
            stacked_bar("Memory by what it is for", {name: size / _GB for name, size in kinds.items()}, "GB"),
            ("Kind", "GB"),
            [(name, f"{size / _GB:.2f}") for name, size in kinds.items()],
        ),
    ]


def _plan_figures(plan: Plan) -> list[dict[str, Any]]:
    currency = plan.inputs.prices.currency
    names = {base.base: base.name for base in plan.bases}
    rows = []
    for place, block in enumerate(plan.blocks):
        demand = ", ".join(f"{names[base]} {value:.3g}" for base, value in sorted(block.demand.items()))
        replicas = ", ".join(
            f"{count} × {names[base]} on {offer}"
            for (base, offer, at), count in sorted(plan.fleet.replicas.items())
            if at == place
        )
        machines = ", ".join(
            f"{count} × {offer}" for (offer, at), count in sorted(plan.fleet.machines.items()) if at == place
        )
        rows.append((place + 1, f"{block.hours:.0f}", demand, replicas, machines))
    totals = [(place + 1.0, sum(block.demand.values())) for place, block in enumerate(plan.blocks)]
    bars = [
        (
            swing.name,
            _units(swing.smaller),
            _units(plan.fleet.cost),
            _units(swing.greater),
        )
        for swing in plan.swings
    ]
    return [
        _figure(
            "fleet",
            "Fleet by level of demand",
            line_chart(
                "Calls a second by level, the busiest first",
                [Line("demand", totals, dots=totals)],
                x_label="level",
                y_label="calls/s",
            ),
            ("Level", "Hours", "Calls/s", "Replicas", "Machines"),
            rows,
        ),
        _figure(
            "tornado",
            "Cost when an input is 20 % smaller or greater",
            tornado_chart("Cost of the plan by input", bars, currency),
            ("Input", "20 % smaller", "20 % greater"),
            [(one.name, *(_words(value, currency) for value in (one.smaller, one.greater))) for one in plan.swings],
        ),
    ]


def _promised(base: BasePlan) -> dict[str, Any]:
    """Return what `review` compares with what happened."""
    count = max(1, base.replicas)
    known = [one for one in base.chosen.point.mu if one <= count]
    point = base.chosen.point.points[max(known, default=min(base.chosen.point.mu))]
    return {
        "base": base.base,
        "name": base.name,
        "start": base.demand.start.isoformat(),
        "median": [round(value, 2) for value in base.demand.median.tolist()],
        "low": [round(value, 2) for value in base.demand.low.tolist()],
        "high": [round(value, 2) for value in base.demand.high.tolist()],
        "attainment": [point.attainment.low, point.attainment.high],
        "alpha": base.workload.alpha,
        "promises": {name: msgspec.to_builtins(one) for name, one in base.workload.promises.items()},
        "output": base.workload.mean(lambda sample: sample.output),
    }


def _step(step: Step, of: str) -> dict[str, Any]:
    return {
        "number": step.number,
        "title": step.title,
        "of": of,
        "inputs": dict(step.inputs),
        "formula": step.formula,
        "result": step.result,
        "value": step.value,
        "unit": step.unit,
        "source": step.source.value,
        "warnings": list(step.warnings),
    }


def _figure(name: str, title: str, svg: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "svg": svg,
        "head": list(head),
        "rows": [[str(cell) for cell in row] for row in rows],
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows), ""]


def _within(share: Interval) -> str:
    return f"{100 * share.value:.2f} % ({100 * share.low:.2f} to {100 * share.high:.2f})"


def _units(micro: int | None) -> float:
    return float("inf") if micro is None else micro / 1e6


def _words(micro: int | None, currency: str) -> str:
    return "no fleet serves" if micro is None else amount(micro, currency)
