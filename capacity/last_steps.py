"""Steps 12 and 13, which are the whole plan's."""

from __future__ import annotations

from capacity.cost import amount
from capacity.plan import Plan
from capacity.results import Step, weakest


def fleet_step(plan: Plan) -> Step:
    """Return step 12."""
    fleet, currency = plan.fleet, plan.inputs.prices.currency
    other = "none serves" if fleet.one_kind_cost is None else amount(fleet.one_kind_cost, currency)
    return Step(
        12,
        "Fleet",
        {
            "levels of demand": f"{len(plan.blocks)}",
            "offers": f"{len(plan.inputs.prices.prices)}",
            "one kind for each base": other,
        },
        "min hours·Σ p_res·R + Σ hours·p_od·O; Σ μ*·n ≥ D, Σ n ≥ 1+k, and D without any one replica",
        f"{amount(fleet.cost, currency)} for {plan.hours} hours, by {fleet.rule}; at most {100 * fleet.gap:.2f} % "
        "above the best there may be",
        fleet.cost / 1e6,
        currency,
        weakest(base.chosen.point.source for base in plan.bases),
    )


def money_step(plan: Plan) -> Step:
    """Return step 13."""
    currency, tokens, money = plan.inputs.prices.currency, plan.tokens, plan.money
    costs = {
        "a million output tokens at the highest rate": tokens.at_rate,
        "on the mean of all hours": tokens.mean,
        "in the quietest hour": tokens.worst,
    }
    inputs = {name: "nothing sold" if value is None else amount(value, currency) for name, value in costs.items()}
    inputs |= {
        "sold": amount(money.revenue, currency),
        "creators": amount(money.creators, currency),
        "payment fees": amount(money.fees, currency),
        "machines": amount(money.machines, currency),
    }
    words = (
        ()
        if currency == "USD"
        else (f"What is sold is counted in USD, and the machines in {currency}: the margin is not one figure.",)
    )
    return Step(
        13,
        "Money",
        inputs,
        "net = sold − creators − fees − machines",
        f"{amount(money.net, currency)} are left. To be checked again by {plan.check_by.isoformat()}",
        money.net / 1e6,
        currency,
        weakest(base.chosen.point.source for base in plan.bases),
        words,
    )
