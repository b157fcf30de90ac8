"""Step 6, the working set: which share of calls finds its adapter resident, by Che's approximation of LRU (2002).

The shipped order of eviction keeps more than LRU; `capacity.simulate` runs it. This formula is the bound below.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from capacity.errors import PlanRefused
from capacity.memory import PAGE_RANK
from capacity.results import Source, Step, WorkingSet
from capacity.workload import Workload

Array = npt.NDArray[np.float64]


def lru_hit(popularity: Array, sizes: Array, capacity: float) -> float:
    """Return Σ pᵢ(1−e^{−pᵢT}) with Σ sizeᵢ(1−e^{−pᵢT}) = capacity.

    popularity: shares of calls, float64 [adapters]; sizes: in the unit of `capacity`, above 0
    """
    if len(popularity) == 0 or capacity >= sizes.sum():
        return 1.0
    if capacity <= 0:
        return 0.0

    def filled(log_t: float) -> float:
        return float(sizes @ -np.expm1(-popularity * np.exp(log_t))) - capacity

    time = np.exp(brentq(filled, -50.0, 100.0))
    return float(popularity @ -np.expm1(-popularity * time))


def distinct(popularity: Array, batch: int) -> float:
    """Return how many different adapters a batch holds on average: Σ 1 − (1−pᵢ)^batch."""
    return float(-np.expm1(batch * np.log1p(-np.minimum(popularity, 1 - 1e-12))).sum())


def working_set(workload: Workload, slots: int, pages: int, batch: int, rate: float | None = None) -> WorkingSet:
    """Return hits, cold starts per second and adapters in a batch of a replica with so many slots and pages.

    rate: calls per second of this replica; None: the workload's
    """
    if slots < 1 or pages < 1:
        raise PlanRefused(6, "a replica needs a slot and a page for adapters")
    rate = workload.rate if rate is None else rate
    adapted = rate * (1.0 - workload.base_share) if workload.adapters else 0.0
    if not workload.adapters:
        return WorkingSet(slots, 1.0, 0.0, batch, 0.0, Source.SIMULATED)
    popularity = workload.popularity()
    ranks = np.array([workload.rank_of(number) for number in range(workload.adapters)], np.float64)
    by_pages = lru_hit(popularity, np.ceil(ranks / PAGE_RANK), float(pages))
    by_slots = lru_hit(popularity, np.ones_like(ranks), float(slots))
    hit = min(by_pages, by_slots)
    return WorkingSet(slots, hit, adapted * (1.0 - hit), batch, distinct(popularity, batch), Source.SIMULATED)


def step(found: WorkingSet, workload: Workload) -> Step:
    """Return step 6 as it is printed."""
    adapted = workload.rate * (1.0 - workload.base_share) if workload.adapters else 0.0
    return Step(
        6,
        "Working set",
        {
            "adapters": f"{workload.adapters:,}",
            "Zipf exponent": f"{workload.zipf:.2f}",
            "slots": f"{found.slots}",
            "batch": f"{found.batch}",
        },
        "hit(C) = Σ pᵢ(1−e^{−pᵢT}), Σ sizeᵢ(1−e^{−pᵢT}) = C",
        f"{100 * found.hit:.1f} % of calls find their adapter, {found.cold_starts:.2f} cold starts/s, "
        f"{found.distinct:.1f} different adapters in a batch",
        found.hit,
        "share",
        found.source,
        worked=f"{adapted:.3f} adapter calls/s × (1 − {found.hit:.4f}) = {found.cold_starts:.3f} cold starts/s"
        + (f"; p₁ = {float(workload.popularity()[0]):.2f}" if workload.adapters else ""),
    )
