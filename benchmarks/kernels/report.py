"""Results as a table, aggregates with their bars, JSON, and a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kernels.cpu import Measured
from benchmarks.kernels.grid import NAMED, Point, Shape

# This project's promises on a CPU, for each type: see README.
LEAST_GEOMETRIC_MEAN = 4.0
LEAST_AT_ANY_POINT = 1 / 1.05
MOST_SHARE_OF_BASE = 0.20


@dataclass(frozen=True)
class Aggregate:
    """One type's figures against the bars. `named_share` is None when the named point was not measured.

    `ceiling`: the geometric mean that kernels at this machine's limits, without any overhead, would have.
    """

    dtype: str
    points: int
    geometric_mean: float
    ceiling: float
    worst: float
    worst_point: str
    slower_points: int
    named_share: float | None

    @property
    def holds(self) -> bool:
        """Whether every bar that was measured is met."""
        return (
            self.geometric_mean >= LEAST_GEOMETRIC_MEAN
            and self.worst >= LEAST_AT_ANY_POINT
            and (self.named_share is None or self.named_share <= MOST_SHARE_OF_BASE)
        )


def aggregates(results: Sequence[Measured]) -> list[Aggregate]:
    """One per type measured, speed-ups over the best peer of each point."""
    out = []
    for dtype in dict.fromkeys(result.point.dtype for result in results):
        mine = [result for result in results if result.point.dtype == dtype]
        worst = min(mine, key=lambda result: result.speedup)
        named = [result.share_of_base for result in mine if _is_named(result.point)]
        out.append(
            Aggregate(
                dtype,
                len(mine),
                geometric_mean([result.speedup for result in mine]),
                geometric_mean([result.speedup / result.share_of_limit for result in mine]),
                worst.speedup,
                label(worst.point),
                sum(result.speedup < LEAST_AT_ANY_POINT for result in mine),
                named[0] if named else None,
            )
        )
    return out


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of at least one positive value."""
    return math.exp(sum(map(math.log, values)) / len(values))


def label(point: Point) -> str:
    """A point in a line."""
    return f"{point.dtype} {point.shape} T={point.rows} D={point.distinct} r={point.rank}"


def row(result: Measured) -> str:
    """One line of the table: microseconds, speed-up, shares."""
    point, micro = result.point, {name: f"{seconds * 1e6:9.0f}" for name, seconds in result.seconds.items()}
    cells = " ".join(micro.get(name, "        -") for name in COLUMNS)
    return (
        f"{point.dtype:9}{point.shape!s:11}{point.rows:4}{point.distinct:4}{point.rank:4} {cells} "
        f"{result.speedup:6.2f} {result.best_peer:14}{result.share_of_base:6.0%} {result.share_of_limit:6.0%}"
    )


COLUMNS = ("ours", "peft_loop", "grouped_mm", "gathered_bmm", "all_slot_mask", "vllm_cpu", "base_gemm")
HEADER = (
    f"{'type':9}{'shape':11}{'T':>4}{'D':>4}{'r':>4} "
    + " ".join(f"{name[:9]:>9}" for name in COLUMNS)
    + f" {'×best':>6} {'best peer':14}{'/base':>6} {'limit':>6}   (µs)"
)


def aggregate_lines(results: Sequence[Measured]) -> str:
    """The figures that are promised, each beside its bar, type by type, and the geometric mean over all points."""
    lines = []
    for one in aggregates(results):
        named = "not measured" if one.named_share is None else f"{one.named_share:.1%}"
        lines.append(
            f"{one.dtype}: geometric mean {one.geometric_mean:.2f}× the best peer over {one.points} points "
            f"(bar {LEAST_GEOMETRIC_MEAN:.0f}×, the machine's limit {one.ceiling:.2f}×); "
            f"worst {one.worst:.2f}× at {one.worst_point} (bar {LEAST_AT_ANY_POINT:.2f}×, {one.slower_points} below); "
            f"T=32 D=32 r=16 576→1536: {named} of the base GEMM (bar {MOST_SHARE_OF_BASE:.0%})"
            f" – {'holds' if one.holds else 'DOES NOT HOLD'}"
        )
    mean = geometric_mean([result.speedup for result in results])
    lines.append(f"all {len(results)} points: geometric mean {mean:.2f}×")
    return "\n".join(lines)


def write_json(path: Path, results: Sequence[Measured], about: dict[str, object]) -> None:
    """Everything measured and what it was measured on."""
    body = {
        **about,
        "aggregates": [asdict(one) | {"holds": one.holds} for one in aggregates(results)],
        "points": [
            asdict(result)
            | {
                "best_peer": result.best_peer,
                "speedup": round(result.speedup, 3),
                "share_of_base": round(result.share_of_base, 4),
                "share_of_limit": round(result.share_of_limit, 4),
            }
            for result in results
        ],
    }
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> list[Measured]:
    """The points of an earlier run."""
    return [
        Measured(
            Point(**{**one["point"], "shape": _shape(one["point"]["shape"])}),
            one["threads"],
            one["seconds"],
            one["limit_seconds"],
            one["skipped"],
        )
        for one in json.loads(path.read_text(encoding="utf-8"))["points"]
    ]


def _shape(body: dict[str, object]) -> Shape:
    return Shape(int(str(body["k"])), tuple(body["slices"]))  # type: ignore[arg-type]


def _is_named(point: Point) -> bool:
    return (point.shape, point.rows, point.distinct, point.rank) == NAMED
