"""Markdown and SVG of curves, operating points and checks. The same values give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.charts import Limit, Line, line_chart, standalone
from capacity.check import CheckResult
from capacity.profile import Profile
from capacity.results import CurvePoint, OperatingPoint, Step


def curve_markdown(
    points: Sequence[CurvePoint], found: OperatingPoint | None, steps: Sequence[Step], warnings: Sequence[str]
) -> str:
    """Return a page: warnings, the curve as a table, the chosen point, the steps."""
    lines = ["# Latency against throughput", ""]
    lines += [f"> **Warning.** {warning}" for warning in warnings] + ([""] if warnings else [])
    lines += [
        "| load | requests/s | output tokens/s | within the promise (90 %) | TTFT mean / p95, s | ITL p50 / p99, ms "
        "| adapters found | busy | refused |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in points:
        bound = one.attainment
        lines.append(
            f"| {one.load:.2f} | {one.rate:.2f} | {one.output_rate:.0f} "
            f"| {100 * bound.value:.2f} % ({100 * bound.low:.2f}–{100 * bound.high:.2f}) "
            f"| {one.ttft.mean:.3f} / {one.ttft.p95:.3f} | {1e3 * one.itl.p50:.1f} / {1e3 * one.itl.p99:.1f} "
            f"| {100 * one.hit:.1f} % | {100 * one.busy:.0f} % | {100 * one.refused:.1f} % |"
        )
    if found is not None:
        lines += ["", "## Operating point", ""]
        lines.append(
            "| replicas | requests/s | load | within the promise, at least | the promise breaks at, requests/s |"
        )
        lines.append("|---|---|---|---|---|")
        for count, chosen in found.points.items():
            broken = found.breaks.get(count)
            breaks = "–" if broken is None else f"{broken.value:.2f} ({broken.low:.2f}–{broken.high:.2f})"
            least = f"{100 * chosen.attainment.low:.2f} %"
            lines.append(f"| {count} | {chosen.rate:.2f} | {chosen.load:.2f} | {least} | {breaks} |")
        lines += [""] + [f"- {count}: {reason}" for count, reason in found.next_fails.items()]
    return "\n".join(lines + steps_markdown(steps)) + "\n"


def steps_markdown(steps: Sequence[Step]) -> list[str]:
    """Return the steps as a table, each with where its number comes from, and their warnings."""
    if not steps:
        return []
    lines = ["", "## Steps", "", "| # | step | inputs | formula | result | from |", "|---|---|---|---|---|---|"]
    for one in steps:
        inputs = "; ".join(f"{name} {value}" for name, value in one.inputs.items())
        formula = one.formula.replace("|", "\\|")
        lines.append(f"| {one.number} | {one.title} | {inputs} | {formula} | {one.result} | {one.source} |")
    warnings = [f"- Step {one.number}: {warning}" for one in steps for warning in one.warnings]
    return lines + (["", *warnings] if warnings else [])


def check_markdown(result: CheckResult) -> str:
    """Return a page: every figure of every cell, predicted and run."""
    lines = [
        "# Check of a profile",
        "",
        f"{100 * result.covered:.0f} % of the figures lie within their intervals: "
        f"{'the profile holds' if result.fine else 'the profile does not hold'}.",
        "",
        "| load | adapters | calls | steps took | figure | predicted | interval | run | off |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in result.cells:
        truth, errors, held = cell.truth.as_dict(), cell.errors(), cell.covered()
        least, most = sorted(cell.beside)
        for name, interval in cell.prediction.intervals.items():
            off = f"{100 * errors[name]:.0f} %" if name in errors else "–"
            off += "" if held[name] else " ✗"
            lines.append(
                f"| {cell.load:.2f} | {cell.adapters} | {cell.calls} | {least:.2f}–{most:.2f} × | {name} "
                f"| {interval.value:.4g} | {interval.low:.4g}–{interval.high:.4g} | {truth[name]:.4g} | {off} |"
            )
    lines += [
        "",
        "*steps took*: how many times as long as usual a few steps that are always the same took before and after the "
        "cell. Intervals reach so far, so where neighbours come and go they are wide.",
    ]
    return "\n".join(lines) + "\n"


def profile_markdown(profile: Profile) -> str:
    """Return what a calibration found, as a table."""
    rows = [f"| {name} | {value:.3g} |" for name, value in profile.coefficients.items()]
    quality, seen = profile.quality, "streamed tokens" if profile.over_http else "steps"
    return "\n".join(
        [
            f"# Calibration of {profile.model.name} ({profile.model.dtype})",
            "",
            f"{quality.steps} {seen} on {profile.machine.gpu or profile.machine.cpu}, {profile.source}; "
            f"{100 * quality.median:.1f} % off in the median on {_unseen(profile)} that the fit did not see, "
            f"90 % of them below {100 * quality.p90:.0f} %; the machine drifted by {100 * quality.drift:.0f} % between "
            "passes.",
            "",
            "| coefficient | seconds |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _unseen(profile: Profile) -> str:
    return "figures of cells" if profile.over_http else "steps"


def curve_svg(points: Sequence[CurvePoint], found: OperatingPoint | None = None, promise: float | None = None) -> str:
    """Return p95 of the first token (s) against requests per second, as an SVG file.

    promise: the limit of the first token, drawn as a line
    """
    pairs = [(point.rate, point.ttft.p95) for point in points]
    # Beyond the cliff a first token takes minutes: what lies far above the promise would flatten the rest.
    most = max(3 * promise, min((seconds for _, seconds in pairs), default=0.0)) if promise else float("inf")
    drawn = [(rate, min(seconds, most)) for rate, seconds in pairs]
    chosen = [(one.rate, min(one.ttft.p95, most)) for one in (found.points.values() if found is not None else ())]
    return standalone(
        line_chart(
            "Time to first token against requests per second",
            [Line("p95", drawn, dots=drawn, chosen=chosen[0] if chosen else None)],
            x_label="requests per second",
            y_label="p95 of the first token, seconds",
            limits=[Limit("promised", promise)] if promise is not None else (),
        )
    )
