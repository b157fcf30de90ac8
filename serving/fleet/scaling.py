"""Ray Serve's hook for the number of replicas: it turns what replicas report into figures and asks `policy.decide`.

It runs in Ray's controller, which must never wait: no torch, no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from serving.fleet.policy import Limits, PolicyState, PoolFigures, decide

log = logging.getLogger(__name__)

# Ray's name → replica → value, a mean over the last seconds.
Reported = Mapping[str, Mapping[Any, float]]
_BEARABLE = 0.95  # the share of calls whose wait counts


class Context(Protocol):
    """What this policy reads of Ray's `AutoscalingContext`."""

    @property
    def aggregated_metrics(self) -> Reported | None: ...
    @property
    def target_num_replicas(self) -> int: ...
    @property
    def current_num_replicas(self) -> int: ...
    @property
    def current_time(self) -> float | None: ...
    @property
    def policy_state(self) -> dict[str, Any]: ...


class PoolScaling:
    """The policy of one pool, as Ray calls it: `(context) -> (replicas, state)`."""

    def __init__(self, *, pool: str, targets: str, least: int, most: int) -> None:
        """Read the limits. Raises TargetsRefused for a plan that cannot be read or does not know the pool."""
        self._pool = pool
        self._limits = Limits.from_targets(Path(targets) if targets else None, pool, least=least, most=most)

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """Decide. The state is a dict of scalars and tuples: Ray keeps it between calls."""
        before = PolicyState(**context.policy_state) if context.policy_state else PolicyState()
        now = context.current_time or 0.0
        figures = figures_of(
            context.aggregated_metrics or {},
            now=now,
            replicas=context.target_num_replicas,
            ready=context.current_num_replicas,
        )
        wanted, state = decide(before, figures, self._limits)
        if wanted != context.target_num_replicas:
            log.info("pool %s: %d replicas -> %d (%s)", self._pool, context.target_num_replicas, wanted, state.why)
        return wanted, asdict(state)


def figures_of(reported: Reported, *, now: float, replicas: int, ready: int) -> PoolFigures:
    """Return a pool's figures from what its replicas report; what none of them reports is missing."""

    def values(name: str) -> list[float]:
        return sorted(reported.get(name, {}).values())

    def total(name: str) -> float | None:
        # A replica that does not tell its rate yet is one more reason to hold the number: the sum would be too small.
        known = values(name)
        return sum(known) if known and len(known) >= ready else None

    def mean(name: str) -> float | None:
        known = values(name)
        return sum(known) / len(known) if known else None

    waits, busy = values("wait_over_target"), total("busy")
    return PoolFigures(
        now=now,
        replicas=replicas,
        ready=ready,
        arrivals=total("arrivals"),
        service_s=mean("service_s"),
        seats=mean("seats"),
        busy=None if busy is None else round(busy),
        wait_over_target=waits[min(len(waits) - 1, int(_BEARABLE * len(waits)))] if waits else None,
        reload_share=mean("reload_share"),
        pages_each=mean("pages_each"),
    )
