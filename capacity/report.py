"""A plan as JSON and Markdown. The same plan gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capacity.answer import summary, tables
from capacity.base_plan import BasePlan
from capacity.figures import figures
from capacity.last_steps import fleet_step, money_step
from capacity.plan import Plan, surest
from capacity.results import CurvePoint, Step
from capacity.targets import targets_of

FORMAT = 1


def document(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values: sentences, tables, figures, steps, targets, and what a review needs."""
    last = (fleet_step(plan), money_step(plan))
    return {
        "format": FORMAT,
        "made_on": plan.inputs.today.isoformat(),
        "check_by": plan.check_by.isoformat(),
        "commit": plan.inputs.commit,
        "usage_sha256": plan.inputs.usage.digest,
        "currency": plan.inputs.prices.currency,
        "source": surest(plan),
        "summary": summary(plan),
        "warnings": list(plan.warnings),
        "tables": tables(plan),
        "figures": figures(plan),
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
    if found["warnings"]:
        lines += ["**Before you rely on it:**", "", *(f"- {words}" for words in found["warnings"]), ""]
    for table in found["tables"]:
        lines += [f"## {table['title']}", "", *_table(table["head"], table["rows"])]
        lines += [table["note"], ""] if table["note"] else []
    for figure in found["figures"]:
        lines += [f"## {figure['title']}", "", f"![{figure['title']}]({figure['name']}.svg)", ""]
        lines += [figure["note"], ""] if figure["note"] else []
        lines += _table(figure["head"], figure["rows"])
    lines += ["## The 13 steps", ""]
    for step in found["steps"]:
        of = f", {step['of']}" if step["of"] else ""
        lines += [f"### {step['number']}. {step['title']}{of}", "", f"{step['result']} *({step['source']})*", ""]
        lines += [f"`{step['formula']}`", ""]
        lines += [f"`{step['worked']}`", ""] if step["worked"] else []
        lines += [f"- {name}: {value}" for name, value in step["inputs"].items()]
        lines += ["", *(f"> {words}" for words in own_warnings(step, found)), ""]
    lines.append(f"To be checked again by {found['check_by']}: `python -m capacity review`.")
    return "\n".join(lines).rstrip() + "\n"


def own_warnings(step: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the warnings of a step that do not stand at the top of the page: each is said once."""
    return [words for words in step["warnings"] if words not in found["warnings"]]


def _promised(base: BasePlan) -> dict[str, Any]:
    """Return what `review` compares with what happened, and where the platform draws its own hours: on the curve of
    one replica, of (calls/s, seconds until 95 % of first tokens).
    """
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
        "curve": [_placed(one) for one in base.curve],
        "chosen": _placed(base.chosen.point.points[1]) if 1 in base.chosen.point.points else None,
        "attainment": [point.attainment.low, point.attainment.high],
        "alpha": base.workload.alpha,
        "promises": {name: msgspec.to_builtins(one) for name, one in base.workload.promises.items()},
        "output": base.workload.mean(lambda sample: sample.output),
    }


def _placed(point: CurvePoint) -> list[float]:
    return [point.rate, point.ttft.p95]


def _step(step: Step, of: str) -> dict[str, Any]:
    return {
        "number": step.number,
        "title": step.title,
        "of": of,
        "inputs": dict(step.inputs),
        "formula": step.formula,
        "worked": step.worked,
        "result": step.result,
        "value": step.value,
        "unit": step.unit,
        "source": step.source.value,
        "warnings": list(step.warnings),
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows), ""]
