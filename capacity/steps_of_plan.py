"""The 13 steps of one base, as they are printed: inputs, formula, result, unit, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from capacity import terms
from capacity.base_plan import BasePlan
from capacity.kinds import Kind
from capacity.program import Block
from capacity.results import Source, Step
from capacity.steps import WORST_MEDIAN
from serving.simulation.work import StepWork


def steps_of(given: terms.Terms, base: BasePlan, own: Sequence[Step], blocks: Sequence[Block]) -> list[Step]:
    """Return steps 1 to 11 of a base, `own` (5, 6 and 10) among them; 12 and 13 are the whole plan's."""
    made = [
        _workload(base),
        terms.step(given, {sample.latency_class for sample in base.workload.samples}),
        _demand(given, base),
        _precision(base),
        _roofline(base),
        _calibration(base),
        _parallelism(base),
        _headroom(given, base, blocks),
        *own,
    ]
    return sorted(made, key=lambda step: step.number)


def _workload(base: BasePlan) -> Step:
    work = base.workload
    return Step(
        1,
        "Workload",
        {
            "calls": f"{work.rate:.2f} per second on average",
            "prompt": f"{work.mean(lambda s: s.prompt):.0f} tokens, {work.mean(lambda s: s.cached):.0f} of them cached",
            "output": f"{work.mean(lambda s: s.output):.0f} tokens",
            "burst": f"cv² {work.cv2:.2f}",
            "adapters": f"{work.adapters:,}, Zipf exponent {work.zipf:.2f}",
        },
        "λE[P(1−h)] in, λE[O] out",
        f"{work.input_rate:,.1f} tokens/s to compute, {work.output_rate:,.1f} tokens/s to write",
        work.output_rate,
        "tokens/s",
        Source.MEASURED,
        worked=f"{work.rate:.3f} calls/s × {work.input_rate / work.rate:.2f} tokens = {work.input_rate:,.1f} tokens/s "
        f"in; × {work.output_rate / work.rate:.2f} tokens = {work.output_rate:,.1f} tokens/s out",
    )


def _demand(given: terms.Terms, base: BasePlan) -> Step:
    found = base.demand
    top = int(found.high.argmax())
    back = found.backtest
    proof = (
        "no history to test it on"
        if back is None
        else f"on {back.origins} past weeks off by {100 * back.wape:.0f} % of all calls (last week again: "
        f"{100 * back.last_week_wape:.0f} %), {100 * back.covered:.0f} % inside the interval"
    )
    return Step(
        3,
        "Demand",
        {"ahead": f"{given.weeks} {'week' if given.weeks == 1 else 'weeks'}", "backtest": proof},
        "D_q(hour) = typical week × damped trend; served + refused",
        f"{found.median[top]:,.0f} calls in the busiest hour; {found.high.max():,.0f} at the upper end of the 90 % "
        "interval",
        float(found.high.max()),
        "calls/h",
        Source.SIMULATED,
        found.warnings,
        f"{found.median[top]:,.0f} calls × {found.high[top] / max(1e-9, found.median[top]):.3f} (the upper end of the "
        f"rule's own errors) = {found.high[top]:,.0f} calls in an hour = {found.high[top] / 3600:.2f} calls/s",
    )


def _precision(base: BasePlan) -> Step:
    model = base.chosen.profile.model
    reduced = model.dtype not in ("bfloat16", "float16", "float32")
    words = (
        (f"{base.name} is planned in {model.dtype}: versions are served there once they are cleared for it.",)
        if reduced
        else ()
    )
    return Step(
        4,
        "Precision",
        {"weights": f"{model.weight_bytes / 1e9:.2f} GB"},
        "W = Σ params × bytes",
        f"{model.dtype}, as it was calibrated",
        model.weight_bytes / 1e9,
        "GB",
        Source.MEASURED,
        words,
        f"W = {model.weight_bytes:,} B = {model.weight_bytes / 1e9:.3f} GB",
    )


def _roofline(base: BasePlan) -> Step:
    chosen = base.chosen
    seats = min(chosen.profile.replica.max_num_seqs, max(1, chosen.memory.sequences))
    context = base.workload.mean(lambda s: s.prompt + s.output / 2)
    work = StepWork(
        rows=seats,
        decode_rows=seats,
        samples=seats,
        context=int(seats * context),
        pairs=0,
        adapters=min(seats, base.workload.adapters),
        pages=min(seats, base.workload.adapters),
        rank_rows=16 * min(seats, base.workload.adapters),
    )
    seconds = chosen.profile.steps.seconds(work)
    parts = chosen.profile.steps.parts(work)
    terms_ms = " + ".join(f"{1e3 * part:.2f} {name}" for name, part in parts.items() if part >= 5e-6)
    return Step(
        7,
        "Roofline",
        {"sequences": f"{seats}", "context": f"{context:.0f} tokens"},
        "t = ‖W/β_w, 2N·rows/φ‖₄ + ‖head‖₄ + κ·context/β_k + adapters + c₀ + c₁·rows",
        f"a full step takes {1e3 * seconds:.1f} ms: {seats / seconds:,.0f} tokens/s at most",
        1e3 * seconds,
        "ms",
        chosen.point.source,
        worked=f"{terms_ms} = {1e3 * seconds:.2f} ms; {seats} tokens / {1e3 * seconds:.2f} ms = "
        f"{seats / seconds:,.0f} tokens/s",
    )


def _calibration(base: BasePlan) -> Step:
    profile = base.chosen.profile
    origin = Source.TRANSFERRED if profile.transferred else Source.MEASURED
    if profile.example:
        origin = Source.CATALOGUE  # taken as it was written
    measured = "figures of cells" if profile.over_http else "steps"
    return Step(
        8,
        "Calibration",
        {
            "machine": profile.machine.gpu or f"{profile.machine.cpu}, {profile.machine.threads} threads",
            "made": profile.made_at[:10],
            "commit": profile.commit[:12] or "not known",
        },
        f"error = median |predicted − measured| / measured ≤ 8 %, on {measured} that the fit did not see",
        f"{100 * profile.quality.median:.1f} % off in the median; 90 % of the {measured} are less than "
        f"{100 * profile.quality.p90:.0f} % off",
        100 * profile.quality.median,
        "%",
        origin,
        base.chosen.warnings,
        f"{100 * profile.quality.median:.1f} % ≤ {100 * WORST_MEDIAN:.0f} %, from {profile.quality.steps:,} {measured}",
    )


def _parallelism(base: BasePlan) -> Step:
    chosen = base.chosen
    others = "; ".join(f"{name}: {words}" for name, words in sorted(base.refused.items())) or "none"
    return Step(
        9,
        "Parallelism",
        {"accelerator": chosen.accelerator, "refused": others},
        "the fewest cards that hold step 5; replicas before ranks",
        f"{chosen.cards} {'card' if chosen.cards == 1 else 'cards'} per replica",
        float(chosen.cards),
        "cards",
        chosen.point.source,
        worked=f"{chosen.memory.usable / 1e9:.3f} GB on {chosen.cards} {'card' if chosen.cards == 1 else 'cards'} hold "
        f"weights, adapters and {chosen.memory.sequences:,} sequences",
    )


def _headroom(given: terms.Terms, base: BasePlan, blocks: Sequence[Block]) -> Step:
    demand = max(block.demand.get(base.base, 0.0) for block in blocks)
    busiest = demand * (1 + given.growth)
    count = base.chosen.needed(busiest, given.failures)
    each = base.chosen.rate(max(1, count))
    bears = each * max(1, count)
    return Step(
        11,
        "Headroom",
        {
            "demand": f"{demand:.3g} calls/s",
            "growth while a replica gets ready": f"{100 * given.growth:g} % in {given.ready_seconds:g} s",
            "replicas that may die": f"{given.failures}",
        },
        "n = ⌈D_q·(1+g)/μ*(n)⌉ + k",
        f"{count} {'replica' if count == 1 else 'replicas'} on {base.chosen.accelerator} in the busiest level; "
        f"{base.replicas} in the cheapest fleet; load {busiest / max(1e-9, bears) * 100:.0f} % of what they bear",
        float(count) if math.isfinite(count) else None,
        "replicas",
        base.chosen.point.source,
        worked=_worked_headroom(demand, given, base.chosen, count),
    )


def _worked_headroom(demand: float, given: terms.Terms, kind: Kind, count: int) -> str:
    alone = max(1, count - given.failures)
    busiest = demand * (1 + given.growth)
    # The count grows from 1, so that a smaller pool's rate may have decided it.
    rates = (kind.rate(pool) for pool in range(alone, 0, -1))
    rate = next((one for one in rates if math.ceil(busiest / one - 1e-9) == alone), kind.rate(alone))
    return (
        f"⌈{demand:.2f} × {1 + given.growth:g} / {rate:.2f}⌉ + {given.failures} = ⌈{busiest / rate:.2f}⌉ + "
        f"{given.failures} = {count}"
    )
