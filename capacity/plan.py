"""The 13 steps put together: from usage, profiles, prices and terms to a fleet, its cost, and the date to check it."""

from __future__ import annotations

import datetime
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from capacity import kinds, memory, operating, residency, terms
from capacity.base_plan import BasePlan
from capacity.catalogue import Accelerator, PriceList, stale
from capacity.cost import Margin, Swing, TokenCost, margin, token_cost, tornado
from capacity.errors import PlanRefused
from capacity.fleet import Fleet, blocks_of, cheapest
from capacity.forecast import Event, forecast
from capacity.kinds import Kind
from capacity.operating import Effort, Progress, quiet
from capacity.profile import Profile
from capacity.program import Block, Replica
from capacity.recorded import from_usage
from capacity.results import weakest
from capacity.simulate import Scene
from capacity.steps_of_plan import steps_of
from capacity.usage import UsageFile

CHECK_DAYS = 28
_USAGE_DAYS = 2  # between the last hour of the usage and the plan, without a warning
_MOST_ROUNDS = 4  # of a fleet, and its accelerators simulated with full effort
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
TRAP_LOADS = (0.5, 0.8, 0.95)
_TORNADO_SECONDS = 2.0
_NANO_TO_MICRO = 1000


@dataclass(frozen=True)
class Inputs:
    """The inputs of a plan. profiles: base fingerprint → accelerator → profile; today: the day of the plan.

    workers: processes that simulate
    """

    usage: UsageFile
    profiles: Mapping[str, Mapping[str, Profile]]
    catalogue: Mapping[str, Accelerator]
    prices: PriceList
    terms: terms.Terms
    today: datetime.date
    events: Sequence[Event] = ()
    effort: Effort = field(default_factory=Effort)
    commit: str = ""
    workers: int = 1


@dataclass(frozen=True)
class Plan:
    """A plan. cost_low, cost_high: with rates as far off as their kinds may be; hours: of the plan."""

    inputs: Inputs
    bases: tuple[BasePlan, ...]
    blocks: tuple[Block, ...]
    fleet: Fleet
    cost_low: int
    cost_high: int | None
    tokens: TokenCost
    money: Margin
    swings: tuple[Swing, ...]
    warnings: tuple[str, ...]
    check_by: datetime.date
    hours: int


def plan(inputs: Inputs, progress: Progress = quiet) -> Plan:
    """Make a plan. Raises PlanRefused with the step that fails, and by how much.

    Every accelerator on offer is simulated briefly, and with full effort those that the cheapest fleet has.
    """
    asked = [_asked(inputs, fingerprint) for fingerprint in sorted(inputs.usage.bases) if _calls(inputs, fingerprint)]
    if not asked:
        raise PlanRefused(1, "the usage has no calls: a plan needs at least one day of them")
    accelerators = sorted({price.accelerator for price in inputs.prices.prices})
    pairs = [(base, name) for base in asked for name in accelerators]
    found = _with_kinds(asked, _simulated(inputs, pairs, progress, sure=False))
    blocks = tuple(blocks_of({one.base: one.demand.high / 3600 for one in found}))
    for _ in range(_MOST_ROUNDS):
        progress("fleet")
        fleet = _fleet(inputs, found, blocks)
        unsure = [pair for pair in _in_fleet(inputs, found, fleet) if not pair[0].kinds[pair[1]].sure]
        if not unsure:
            break
        found = _with_kinds(found, _simulated(inputs, unsure, progress, sure=True))
    bases = tuple(
        _finished(inputs, one, blocks)
        for one in _with_pictures([_chosen(inputs, one, fleet) for one in found], inputs, progress)
    )
    low, high = _interval(inputs, bases, blocks)
    warnings = [*_examples(inputs), *stale(inputs.prices, inputs.today), *_old_usage(inputs)]
    for one in bases:
        warnings += [*one.warnings, *one.demand.warnings, *one.chosen.point.warnings]
    if fleet.gap > 0.01:
        warnings.append(
            f"A fleet that costs up to {100 * fleet.gap:.1f} % less may exist: the search ran out of time. Offer fewer "
            "accelerators at once."
        )
    hours = len(bases[0].demand.median)
    return Plan(
        inputs,
        bases,
        blocks,
        fleet,
        low,
        high,
        _tokens(bases, fleet, blocks),
        _money(inputs, fleet, hours),
        tuple(_swings(inputs, bases, blocks)),
        tuple(dict.fromkeys(warnings)),
        inputs.today + datetime.timedelta(days=min(CHECK_DAYS, 7 * inputs.terms.weeks)),
        hours,
    )


def _examples(inputs: Inputs) -> list[str]:
    """Return a sentence for each file whose figures are invented."""
    words = []
    if inputs.prices.example:
        words.append("The prices are invented, so every amount is one of an example. Write the offers that you have.")
    if inputs.terms.example:
        words.append("The promises and shares are those of an example. Write what you promise and pay.")
    return words


def _old_usage(inputs: Inputs) -> list[str]:
    """Return a sentence where the usage ends long before the plan's day: its weeks are past in part."""
    end = (inputs.usage.start + datetime.timedelta(hours=inputs.usage.hours)).date()
    days = (inputs.today - end).days
    if days <= _USAGE_DAYS:
        return []
    return [f"The usage ends {days} days before the plan: the planned weeks begin there. Export it again."]


def _calls(inputs: Inputs, fingerprint: str) -> bool:
    classes = inputs.usage.bases[fingerprint].classes.values()
    return any(sum(one.served) + sum(one.refused) for one in classes)


def _asked(inputs: Inputs, fingerprint: str) -> BasePlan:
    """Return what is asked of a base; no accelerator is looked at yet."""
    usage, given = inputs.usage, inputs.terms
    name = usage.bases[fingerprint].name
    asked = {one for one, hours in usage.bases[fingerprint].classes.items() if sum(hours.served) + sum(hours.refused)}
    unpromised = asked - given.promises.keys()
    if unpromised:
        raise PlanRefused(2, f"{name} is asked in the class {', '.join(sorted(unpromised))}, which has no promise")
    promises = {one: given.promises[one] for one in sorted(asked)}  # others would be drawn, and blamed, for nothing
    workload, warnings = from_usage(usage.usage(fingerprint), promises, alpha=given.alpha, failures=given.failures)
    demand = forecast(usage.demand(fingerprint), weeks=given.weeks, events=inputs.events)
    return BasePlan(fingerprint, name, workload, demand, warnings=warnings)


def _simulated(
    inputs: Inputs, pairs: Sequence[tuple[BasePlan, str]], progress: Progress, *, sure: bool
) -> dict[tuple[str, str], Kind | PlanRefused]:
    """Return each base on each accelerator, or why it does not serve there; on as many processors as were given."""
    jobs = [
        (
            base.name,
            inputs.catalogue.get(name),
            name,
            inputs.profiles.get(base.base, {}),
            base.workload,
            inputs.terms,
            inputs.effort,
            sure,
            base.kinds.get(name),
        )
        for base, name in pairs
    ]
    outcomes = list(_told(_computed(inputs, [partial(kinds.attempt, job) for job in jobs]), pairs, progress))
    return {(base.base, name): outcome for (base, name), outcome in zip(pairs, outcomes, strict=True)}


def _computed(inputs: Inputs, jobs: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    """Yield what the jobs return, in their order; on as many processors as were given."""
    if inputs.workers > 1 and len(jobs) > 1:
        # Not forked: this process may have threads.
        with ProcessPoolExecutor(inputs.workers, mp_context=get_context("spawn")) as pool:
            yield from pool.map(operator.call, jobs)
    else:
        yield from map(operator.call, jobs)


def _told(
    outcomes: Iterable[Kind | PlanRefused], pairs: Sequence[tuple[BasePlan, str]], progress: Progress
) -> Iterator[Kind | PlanRefused]:
    for (base, name), outcome in zip(pairs, outcomes, strict=True):
        progress(f"{base.name} on {name}: {'simulated' if isinstance(outcome, Kind) else 'does not serve'}")
        yield outcome


def _with_kinds(bases: Sequence[BasePlan], outcomes: Mapping[tuple[str, str], Kind | PlanRefused]) -> list[BasePlan]:
    found = []
    for base in bases:
        own = {name: outcome for (key, name), outcome in outcomes.items() if key == base.base}
        served = {**base.kinds, **{name: one for name, one in own.items() if isinstance(one, Kind)}}
        refused = {**base.refused, **{name: str(one) for name, one in own.items() if isinstance(one, PlanRefused)}}
        served = {name: one for name, one in served.items() if name not in refused}
        if not served:
            reasons = "; ".join(f"{one}: {words}" for one, words in refused.items())
            raise PlanRefused(10, f"no accelerator on offer serves {base.name} within its promise. {reasons}")
        found.append(replace(base, kinds=served, refused=refused))
    return found


def _in_fleet(inputs: Inputs, bases: Sequence[BasePlan], fleet: Fleet) -> list[tuple[BasePlan, str]]:
    """Return the accelerators that a fleet has for each base."""
    accelerator_of = {price.name: price.accelerator for price in inputs.prices.prices}
    by_base = {base.base: base for base in bases}
    used = sorted({(base, accelerator_of[offer]) for base, offer, _ in fleet.replicas})
    return [(by_base[base], name) for base, name in used]


def _offers(inputs: Inputs, bases: Sequence[BasePlan], speed: float, demand: float) -> list[Replica]:
    """Return the replicas of every base on every offer. speed: a factor on all rates; demand: on all demand."""
    found = []
    for base in bases:
        busiest = float(base.demand.high.max()) / 3600 * demand * (1 + inputs.terms.growth)
        for price in inputs.prices.prices:
            kind = base.kinds.get(price.accelerator)
            if kind is not None and kind.cards <= price.cards:
                rate = kind.rate(max(1, kind.needed(busiest, 0))) * speed
                found.append(Replica(base.base, price.name, rate, max(rate, kind.degraded * speed), kind.cards))
    return found


def _fleet(
    inputs: Inputs,
    bases: Sequence[BasePlan],
    blocks: Sequence[Block],
    *,
    speed: float = 1.0,
    demand: float = 1.0,
    price: float = 1.0,
    seconds: float = 20.0,
) -> Fleet:
    """Return step 12 for demand with its growth."""
    growth = demand * (1 + inputs.terms.growth)
    grown = [Block(one.hours, {base: value * growth for base, value in one.demand.items()}) for one in blocks]
    offers = [replace(one, hourly=max(1, round(one.hourly * price))) for one in inputs.prices.prices]
    replicas = _offers(inputs, bases, speed, demand)
    return cheapest(
        grown,
        offers,
        replicas,
        spare=inputs.terms.failures,
        zone_may_fail=inputs.terms.zone_may_fail,
        seconds=seconds,
    )


def _chosen(inputs: Inputs, base: BasePlan, fleet: Fleet) -> BasePlan:
    """Return the base with the kind that bears most of it."""
    accelerator_of = {price.name: price.accelerator for price in inputs.prices.prices}
    counts: dict[str, int] = {}
    for (name, offer, place), count in fleet.replicas.items():
        if name == base.base and place == 0:
            counts[accelerator_of[offer]] = counts.get(accelerator_of[offer], 0) + count
    kind = base.kinds[max(sorted(counts), key=lambda one: counts[one], default=min(base.kinds))]
    return replace(base, kind=kind, replicas=sum(counts.values()), warnings=(*base.warnings, *kind.warnings))


def _with_pictures(bases: Sequence[BasePlan], inputs: Inputs, progress: Progress) -> list[BasePlan]:
    """Return the bases with the curves and the tables of the utilization trap of their kinds."""
    sketch = inputs.effort.sketch()  # a picture needs less proof than a promise
    scenes = [Scene(base.chosen.profile, base.workload) for base in bases]
    jobs = [partial(operating.curve, scene, LOADS, sketch) for scene in scenes]
    tables = [partial(operating.trap_table, scene, TRAP_LOADS, sketch) for scene in scenes]
    for base in bases:
        progress(f"{base.name} on {base.chosen.accelerator}: curve")
    found = list(_computed(inputs, [*jobs, *tables]))
    curves, traps = found[: len(bases)], found[len(bases) :]
    return [
        replace(base, curve=tuple(curve), trap=tuple(trap))
        for base, curve, trap in zip(bases, curves, traps, strict=True)
    ]


def _finished(inputs: Inputs, base: BasePlan, blocks: Sequence[Block]) -> BasePlan:
    """Return the base with its steps."""
    chosen, count = base.chosen, base.replicas
    own = [
        memory.step(chosen.memory, base.workload),
        residency.step(
            residency.working_set(
                base.workload,
                chosen.profile.replica.slots,
                chosen.profile.replica.pages,
                chosen.profile.replica.max_num_seqs,
            ),
            base.workload,
        ),
        operating.step(chosen.point, max(one for one in chosen.point.mu if one <= max(1, count)), base.workload),
    ]
    return replace(base, steps=tuple(steps_of(inputs.terms, base, own, blocks)))


def _interval(inputs: Inputs, bases: Sequence[BasePlan], blocks: Sequence[Block]) -> tuple[int, int | None]:
    """Return the cost if every rate is as far off as its kind may be. None: no fleet serves at the slow end."""
    factor = max(base.chosen.factor for base in bases)
    low = _fleet(inputs, bases, blocks, speed=factor, seconds=_TORNADO_SECONDS).cost
    try:
        return low, _fleet(inputs, bases, blocks, speed=1 / factor, seconds=_TORNADO_SECONDS).cost
    except PlanRefused:
        return low, None


def _swings(inputs: Inputs, bases: Sequence[BasePlan], blocks: Sequence[Block]) -> list[Swing]:
    def outcome(values: Mapping[str, float]) -> int | None:
        try:
            return _fleet(
                inputs,
                bases,
                blocks,
                demand=values["demand"],
                speed=values["speed of a replica"],
                price=values["price of an hour"],
                seconds=_TORNADO_SECONDS,
            ).cost
        except PlanRefused:
            return None

    return tornado({"demand": 1.0, "speed of a replica": 1.0, "price of an hour": 1.0}, outcome)


def _tokens(bases: Sequence[BasePlan], fleet: Fleet, blocks: Sequence[Block]) -> TokenCost:
    output = float(np.mean([base.workload.mean(lambda sample: sample.output) for base in bases]))
    calls = [sum(block.demand.values()) for block in blocks]
    total = sum(block.hours for block in blocks)
    hourly = [fleet.cost / total] * len(blocks)
    repeated = [
        (cost, rate) for cost, rate, block in zip(hourly, calls, blocks, strict=True) for _ in range(int(block.hours))
    ]
    best = sum(base.chosen.rate(max(1, base.replicas)) * max(1, base.replicas) for base in bases)
    return token_cost(
        [math.ceil(cost) for cost, _ in repeated],
        [rate for _, rate in repeated],
        output,
        math.ceil(fleet.cost / total),
        best,
    )


def _money(inputs: Inputs, fleet: Fleet, hours: int) -> Margin:
    days = inputs.usage.days_of_revenue
    nano = sum(base.revenue_nano_usd for base in inputs.usage.bases.values())
    revenue = nano * hours // (days * 24) // _NANO_TO_MICRO
    creators, fees = inputs.terms.shares
    return margin(revenue, fleet.cost, creator_share=creators, fee_share=fees)


def surest(plan: Plan) -> str:
    """Return the word of the weakest operating point: a plan is as sure as that. Promises and formulas are given."""
    return weakest(base.chosen.point.source for base in plan.bases).value
