"""The answer of a plan: what to have, for how much, at what risk, until when; and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capacity.base_plan import BasePlan
from capacity.catalogue import Price
from capacity.kinds import MEASURED
from capacity.plan import Plan, surest
from capacity.results import Source, weakest
from capacity.wording import MONTH_HOURS, amount, between, count, day, figure, price

SOURCES = {
    Source.MEASURED: "counted in the books, or timed on this hardware",
    Source.SIMULATED: "the platform's own scheduler replayed with step times that were measured; good to about 10 %",
    Source.TRANSFERRED: "carried over from another machine, good to a factor of 1.3",
    Source.CATALOGUE: "taken as it stands in a data sheet, or in a file that you wrote",
}


@dataclass(frozen=True)
class Order:
    """One offer that the fleet has. least, most: machines over the levels; hours: machine hours of the plan

    cost: millionths of the currency for the plan's hours
    """

    offer: Price
    least: int
    most: int
    hours: float
    cost: int


def orders(plan: Plan) -> list[Order]:
    """Return what to have of each offer, the dearest first."""
    found = []
    for offer in plan.inputs.prices.prices:
        counts = [plan.fleet.machines.get((offer.name, place), 0) for place in range(len(plan.blocks))]
        if any(counts):
            if offer.reserved:
                counts = [max(counts)] * len(counts)  # paid for in every hour
            hours = sum(number * block.hours for number, block in zip(counts, plan.blocks, strict=True))
            found.append(Order(offer, min(counts), max(counts), hours, round(hours * offer.hourly)))
    return sorted(found, key=lambda one: (-one.cost, one.offer.name))


def summary(plan: Plan) -> list[str]:
    """Return the answer in sentences: the fleet and its cost first, then the load, the money, the risk and the date."""
    sentences = [_headline(plan), *(_base(plan, base) for base in plan.bases)]
    sentences += _left(plan)
    sentences.append(_risk(plan))
    sentences.append(
        f"Check the plan again by {day(plan.check_by)}. It is as sure as its weakest step, which is "
        f"{surest(plan)}: {SOURCES[Source(surest(plan))]}."
    )
    return sentences


def tables(plan: Plan) -> list[dict[str, Any]]:
    """Return the tables above the pictures: what to have, the money, and what the plan rests on."""
    return [_machines(plan), _money(plan), _assumptions(plan)]


def _ahead(plan: Plan) -> str:
    return count(plan.inputs.terms.weeks, "week")


def _month(micro: int, plan: Plan) -> int:
    return round(micro * MONTH_HOURS / plan.hours)


def _headline(plan: Plan) -> str:
    parts = []
    for one in orders(plan):
        number = f"{one.most} ×" if one.least == one.most else f"{one.least} to {one.most} ×"
        parts.append(f"{number} “{one.offer.name}” ({one.offer.accelerator})")
    currency, cost = plan.inputs.prices.currency, plan.fleet.cost
    return (
        f"Have {' and '.join(parts)} for the next {_ahead(plan)}: {amount(cost, currency)}, which is "
        f"{amount(_month(cost, plan), currency)} per month. {_range(plan)}"
    )


def _range(plan: Plan) -> str:
    """Return what the cost is if rates are off by as much as they may be."""
    currency = plan.inputs.prices.currency
    factor = max(base.chosen.factor for base in plan.bases)
    off = "10 %" if factor == MEASURED else f"a factor of {factor:g}"
    if plan.cost_high is None:
        return f"If replicas are slower by {off}, the offers do not suffice: ask for a higher quota."
    if plan.cost_low == plan.cost_high:
        return f"The cost is the same if replicas are {off} faster or slower than planned."
    return (
        f"It is {between(plan.cost_low, plan.cost_high, currency)} if replicas are {off} faster or slower than planned."
    )


def _bears(base: BasePlan) -> float:
    replicas = max(1, base.replicas)
    return base.chosen.rate(replicas) * replicas


def _base(plan: Plan, base: BasePlan) -> str:
    most = float(base.demand.high.max()) / 3600
    spare = plan.inputs.terms.failures
    may = "" if not spare else f", of which {spare} may fail"
    return (
        f"{base.name}: {count(base.replicas, 'replica')} on {base.chosen.accelerator} in the busiest hours{may}, for "
        f"up to {figure(most)} calls per second. They bear {figure(_bears(base))} calls per second "
        f"within the promise, so the busiest hour loads them by {100 * most / _bears(base):.0f} %."
    )


def _left(plan: Plan) -> list[str]:
    money, currency = plan.money, plan.inputs.prices.currency
    if money.share is None or currency != "USD":
        return []
    sold = f"sales of {amount(money.revenue, currency)} over {_ahead(plan)}, as in the last days of the books"
    if money.net < 0:
        return [
            f"With {sold}, {amount(-money.net, currency)} are missing: creators, fees and machines cost more than that."
        ]
    return [
        f"With {sold}, {amount(money.net, currency)} are left after creators, fees and machines: "
        f"{100 * money.share:.0f} % of the sales."
    ]


def _risk(plan: Plan) -> str:
    reserve = min(_bears(base) / max(1e-9, float(base.demand.high.max()) / 3600) for base in plan.bases)
    alpha = plan.inputs.terms.alpha
    return (
        "Risk: about one hour in twenty may bring more calls than planned for. The promise "
        f"({100 * alpha:g} % of calls within their limits) holds up to {reserve:.1f} times the planned calls of the "
        "busiest hour; beyond that, calls wait longer."
    )


def _machines(plan: Plan) -> dict[str, Any]:
    currency = plan.inputs.prices.currency
    rows: list[Sequence[str]] = []
    for one in orders(plan):
        number = f"{one.most}" if one.least == one.most else f"{one.least} to {one.most}"
        rows.append(
            (
                one.offer.name,
                one.offer.accelerator,
                "reserved: every hour is paid" if one.offer.reserved else "paid by the hour",
                number,
                f"{one.hours:,.0f}",
                price(one.offer.hourly, currency),
                amount(one.cost, currency),
                amount(_month(one.cost, plan), currency),
                f"{one.offer.source}, {day(one.offer.date)}",
            )
        )
    total = plan.fleet.cost
    rows.append(("All", "", "", "", "", "", amount(total, currency), amount(_month(total, plan), currency), ""))
    return _table(
        "machines",
        "Machines to have",
        f"A month has {MONTH_HOURS} hours. Where a number has two ends, the smaller one is for quiet hours.",
        (
            "Offer",
            "Accelerator",
            "Terms",
            "Machines",
            "Hours",
            "Per hour",
            _ahead(plan),
            "Per month",
            "Price from",
        ),
        rows,
    )


def _money(plan: Plan) -> dict[str, Any]:
    currency, money, tokens = plan.inputs.prices.currency, plan.money, plan.tokens
    word = weakest(base.chosen.point.source for base in plan.bases).value
    creators, fees = plan.inputs.terms.shares
    cost = between(plan.cost_low, plan.cost_high, currency)
    days = plan.inputs.usage.days_of_revenue

    def row(name: str, micro: int, unit: str, ends: str, source: str) -> tuple[str, ...]:
        return name, amount(micro, unit), amount(_month(micro, plan), unit), ends, source

    rows = [
        row("Sold", money.revenue, "USD", "not forecast", f"measured, last {count(days, 'day')} of the books"),
        row(f"Creators, {float(100 * creators):g} %", -money.creators, "USD", "", "catalogue, promises file"),
        row(f"Payment fees, {float(100 * fees):g} %", -money.fees, "USD", "", "catalogue, promises file"),
        row("Machines", -money.machines, currency, cost, f"{word}, at the prices above"),
    ]
    if currency == "USD":
        before = money.net + money.machines
        worst = None if plan.cost_high is None else before - plan.cost_high
        ends = amount(before - plan.cost_low, currency)
        if worst is not None and worst != before - plan.cost_low:
            ends = f"{amount(worst, currency).removesuffix(f' {currency}')} to {ends}"
        rows.append(row("Left", money.net, currency, ends, word))
    for name, value in (
        ("at the highest rate within the promise", tokens.at_rate),
        ("on average over the plan", tokens.mean),
        ("in the quietest hours", tokens.worst),
    ):
        if value is not None:
            rows.append((f"A million output tokens, {name}", amount(value, currency), "", "", word))
    return _table(
        "money",
        "Money",
        "Sales are those of the last days, carried forward unchanged.",
        ("Item", _ahead(plan), "Per month", "Between", "From"),
        rows,
    )


def _assumptions(plan: Plan) -> dict[str, Any]:
    given, usage = plan.inputs.terms, plan.inputs.usage
    rows: list[Sequence[str]] = [
        (
            "Demand",
            "the upper end of the forecast's 90 % interval, hour by hour",
            f"forecast from {usage.hours / 24:.1f} days of usage",
        )
    ]
    for base in plan.bases:
        profile, chosen = base.chosen.profile, base.chosen
        times = f"{100 * profile.quality.median:.1f} % off in the median"
        rows.append((f"Step times of {base.name} on {chosen.accelerator}", times, _timed(base)))
    rows += [
        (
            f"Promise, {name}",
            f"first token within {one.ttft:g} s, then {1e3 * one.tpot:g} ms per token",
            "catalogue, promises file",
        )
        for name, one in sorted({k: v for base in plan.bases for k, v in base.workload.promises.items()}.items())
    ]
    rows += [
        ("Calls within the promise", f"at least {100 * given.alpha:g} %, with 90 % confidence", surest(plan)),
        (
            "Failures",
            f"{count(given.failures, 'replica')} of each base at once; limits are {given.degraded:g} times as long",
            "catalogue, promises file",
        ),
        (
            "Growth before a new replica is ready",
            f"{100 * given.growth:g} % in {given.ready_seconds:g} s",
            "catalogue, promises file",
        ),
        ("Speed of a replica", "10 % either way where it was measured, a factor of 1.3 elsewhere", "benchmarks"),
    ]
    note = "; ".join(f"{word.value}: {words}" for word, words in SOURCES.items())
    return _table("assumptions", "Assumptions", f"{note[0].upper()}{note[1:]}.", ("Assumption", "Value", "From"), rows)


def _timed(base: BasePlan) -> str:
    profile = base.chosen.profile
    if profile.example:
        return "catalogue: invented, no machine was timed"
    machine = profile.machine.gpu or f"{profile.machine.cpu}, {profile.machine.threads} threads"
    return f"{'transferred' if profile.transferred else 'measured'} on {machine}, {profile.made_at[:10]}"


def _table(name: str, title: str, note: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {"name": name, "title": title, "note": note, "head": list(head), "rows": [list(row) for row in rows]}
