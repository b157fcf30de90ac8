"""Last month's plan against what happened: demand, intervals, and the share of calls within the promise."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from capacity.charts import Line, line_chart
from capacity.errors import PlanRefused
from capacity.usage import UsageFile

_LARGEST = 16 << 20
_LEAST_HOURS = 24


class _Promise(msgspec.Struct, frozen=True):
    ttft: float
    tpot: float


class _Promised(msgspec.Struct, frozen=True):
    base: str
    name: str
    start: datetime.datetime
    median: list[float]
    low: list[float]
    high: list[float]
    attainment: tuple[float, float]
    alpha: float
    promises: dict[str, _Promise]
    output: float


class _Document(msgspec.Struct, frozen=True):
    format: int
    made_on: str
    promised: list[_Promised]


@dataclass(frozen=True)
class BaseReview:
    """One base. wape: Σ|error| / Σ calls; covered: share of hours inside the interval; peak: actual over planned

    attained: share of sampled calls within the promise, None where no time was measured; kept: whether it is at least
    what the plan stated as the least
    """

    name: str
    hours: int
    wape: float
    covered: float
    peak: float
    attained: float | None
    stated: tuple[float, float]
    sampled: int
    kept: bool | None
    output: float
    planned_output: float
    svg: str


def read_plan(path: Path) -> _Document:
    """Read what `plan --json` printed. Raises PlanRefused."""
    try:
        data = path.read_bytes() if path.stat().st_size <= _LARGEST else b""
        found = msgspec.json.decode(data, type=_Document)
    except OSError as error:
        raise PlanRefused(0, f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise PlanRefused(0, f"{path} is no plan: {error}") from error
    if found.format != 1:
        raise PlanRefused(0, f"{path}: format {found.format}, this version reads 1")
    return found


def review(plan: _Document, usage: UsageFile) -> list[BaseReview]:
    """Compare a plan with usage. Raises PlanRefused where fewer than 24 hours of the plan are over."""
    found = [one for promised in plan.promised if (one := _of_base(promised, usage)) is not None]
    if not found:
        raise PlanRefused(0, f"less than {_LEAST_HOURS} hours of the plan of {plan.made_on} are over: review it later")
    return found


def _of_base(promised: _Promised, usage: UsageFile) -> BaseReview | None:
    base = usage.bases.get(promised.base)
    if base is None:
        return None
    skipped = round((promised.start - usage.start) / datetime.timedelta(hours=1))
    total = np.zeros(usage.hours)
    for one in base.classes.values():
        total += np.array(one.served, np.float64) + np.array(one.refused, np.float64)
    first = max(0, skipped)
    actual = total[first : first + len(promised.median)]
    offset = first - skipped
    hours = min(len(actual), len(promised.median) - offset)
    if hours < _LEAST_HOURS or not actual[:hours].sum():
        return None
    actual = actual[:hours]
    median, low, high = (
        np.array(one[offset : offset + hours]) for one in (promised.median, promised.low, promised.high)
    )
    attained, sampled = _attained(promised, base.times)
    shapes = [shape[2] for rows in base.shapes.values() for shape in rows]
    x = range(hours)
    svg = line_chart(
        f"Calls a second for {promised.name}, planned and seen",
        [
            Line("planned", list(zip(x, (median / 3600).tolist(), strict=True))),
            Line("seen", list(zip(x, (actual / 3600).tolist(), strict=True)), style="second"),
        ],
        x_label="hours since the plan",
        y_label="calls/s",
        fan=list(zip(x, (low / 3600).tolist(), (high / 3600).tolist(), strict=True)),
    )
    return BaseReview(
        promised.name,
        hours,
        float(np.abs(actual - median).sum() / actual.sum()),
        float(((actual >= low) & (actual <= high)).mean()),
        float(np.quantile(actual, 0.99) / max(1e-9, np.quantile(high, 0.99))),
        attained,
        promised.attainment,
        sampled,
        None if attained is None else attained >= promised.attainment[0],
        float(np.mean(shapes)) if shapes else 0.0,
        promised.output,
        svg,
    )


def _attained(promised: _Promised, times: Mapping[str, Sequence[tuple[int, int, int]]]) -> tuple[float | None, int]:
    kept = sampled = 0
    for name, rows in times.items():
        limit = promised.promises.get(name)
        if limit is None:
            continue
        for output, ttft_ms, duration_ms in rows:
            tpot = (duration_ms - ttft_ms) / 1e3 / (output - 1) if output > 1 else 0.0
            kept += ttft_ms / 1e3 <= limit.ttft and tpot <= limit.tpot
            sampled += 1
    return (kept / sampled, sampled) if sampled else (None, 0)


def document(plan: _Document, found: Sequence[BaseReview]) -> dict[str, Any]:
    """Return a review as JSON values."""
    return {
        "format": 1,
        "plan": plan.made_on,
        "held": all(one.kept is not False for one in found),
        "bases": [msgspec.to_builtins(one) for one in found],
    }


def markdown(found: Mapping[str, Any]) -> str:
    """Return a review as a page of Markdown."""
    lines = [f"# The plan of {found['plan']} against what happened", ""]
    lines += [
        "| base | hours | off, of all calls | inside the interval | busiest hours, seen / planned | kept promise |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for one in found["bases"]:
        attained = "no times" if one["attained"] is None else f"{100 * one['attained']:.2f} % of {one['sampled']:,}"
        lines.append(
            f"| {one['name']} | {one['hours']} | {100 * one['wape']:.0f} % | {100 * one['covered']:.0f} % "
            f"| {one['peak']:.2f} | {attained} (stated {100 * one['stated'][0]:.2f} %) |"
        )
    return "\n".join([*lines, "", "The plan held." if found["held"] else "The plan did not hold: calibrate again.", ""])
