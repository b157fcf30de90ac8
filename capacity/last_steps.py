"""Steps 12 and 13, which are the whole plan's."""

from __future__ import annotations

from capacity.answer import orders
from capacity.plan import Plan
from capacity.results import Step, weakest
from capacity.wording import amount, count, day, price

_NO_GAP = 0.00005


def fleet_step(plan: Plan) -> Step:
    """Return step 12."""
    fleet, currency = plan.fleet, plan.inputs.prices.currency
    other = "none serves" if fleet.one_kind_cost is None else amount(fleet.one_kind_cost, currency)
    sums = [f"{one.hours:,.0f} h × {price(one.offer.hourly, currency)} ({one.offer.name})" for one in orders(plan)]
    best = (
        "no fleet of these offers is cheaper"
        if fleet.gap < _NO_GAP
        else f"a fleet that costs up to {100 * fleet.gap:.2f} % less may exist"
    )
    return Step(
        12,
        "Fleet",
        {
            "levels of demand": f"{len(plan.blocks)}",
            "offers": f"{len(plan.inputs.prices.prices)}",
            "one kind for each base": other,
        },
        "min hours·Σ p_res·R + Σ hours·p_od·O; Σ μ*·n ≥ D, Σ n ≥ 1+k, and D without any one replica",
        f"{amount(fleet.cost, currency)} for {count(plan.hours, 'hour')}; {best}",
        fleet.cost / 1e6,
        currency,
        weakest(base.chosen.point.source for base in plan.bases),
        worked=f"{' + '.join(sums)} = {amount(fleet.cost, currency)}",
    )


def money_step(plan: Plan) -> Step:
    """Return step 13. The margin is one figure only where sales and machines are in one currency."""
    currency, tokens, money = plan.inputs.prices.currency, plan.tokens, plan.money
    costs = {
        "a million output tokens at the highest rate": tokens.at_rate,
        "on average over all hours": tokens.mean,
        "in the quietest hours": tokens.worst,
    }
    inputs = {name: "nothing sold" if value is None else amount(value, currency) for name, value in costs.items()}
    inputs |= {
        "sold": amount(money.revenue, "USD"),
        "creators": amount(money.creators, "USD"),
        "payment fees": amount(money.fees, "USD"),
        "machines": amount(money.machines, currency),
    }
    single = currency == "USD"
    words = () if single else (f"Sales are counted in USD, and machines in {currency}: convert before you subtract.",)
    left = f"{amount(money.net, currency)} are left" if single else "No margin: sales and machines differ in currency"
    parts = (money.revenue, money.creators, money.fees, money.machines)
    return Step(
        13,
        "Money",
        inputs,
        "net = sold − creators − fees − machines",
        f"{left}. To be checked again by {day(plan.check_by)}",
        money.net / 1e6 if single else None,
        currency,
        weakest(base.chosen.point.source for base in plan.bases),
        words,
        " − ".join(amount(one, currency).removesuffix(f" {currency}") for one in parts)
        + f" = {amount(money.net, currency)}"
        if single
        else "",
    )
