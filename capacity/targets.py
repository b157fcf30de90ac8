"""`targets.json`: what a plan tells the autoscaler of each pool (`serving.fleet.policy` reads it)."""

from __future__ import annotations

import math
from typing import Any

from capacity.operating import highest_rate
from capacity.plan import Plan
from capacity.simulate import Scene

FORMAT = 1


def targets_of(plan: Plan) -> dict[str, Any]:
    """Return the targets by pool, whose name is the base's.

    mu: replicas → calls/s within the promise; ceiling: the same over the highest rate of as many; min: never fewer;
    k: that may die; ready_seconds: until a new one serves; working_set: adapters asked in a week
    """
    pools: dict[str, Any] = {}
    for base in plan.bases:
        chosen = base.chosen
        highest = highest_rate(Scene(chosen.profile, base.workload), plan.inputs.effort)
        least = min((block.demand.get(base.base, 0.0) for block in plan.blocks), default=0.0)
        pools[base.name] = {
            "mu": {str(count): round(rate, 6) for count, rate in sorted(chosen.point.mu.items())},
            "ceiling": {
                str(count): round(min(1.0, rate / (highest * count)), 4)
                for count, rate in sorted(chosen.point.mu.items())
            },
            "min": chosen.needed(least, plan.inputs.terms.failures) if math.isfinite(least) else 1,
            "k": plan.inputs.terms.failures,
            "ready_seconds": plan.inputs.terms.ready_seconds,
            "working_set": base.workload.adapters,
        }
    return {"format": FORMAT, "made_at": plan.inputs.today.isoformat(), "pools": pools}
