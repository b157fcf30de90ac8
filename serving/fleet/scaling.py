"""Ray Serve's hook for the number of replicas: it gathers what replicas report and asks `policy.decide`.

It runs in Ray's controller, which must never wait: no torch, and no I/O after the start.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from protocol.demand import PoolReport
from serving.fleet.demand import DemandLine
from serving.fleet.figures import Sample, gather
from serving.fleet.policy import Limits, PolicyState, PoolFigures, decide

log = logging.getLogger(__name__)

WINDOW_SECONDS = 10.0  # over which rates are taken
_STATE = "intarsia"  # the key of our part of the state
_SAMPLE_SECONDS = 1.0  # as often as replicas report; Ray asks ten times as often


class Point(Protocol):
    """A value that a replica reported, with its time in seconds of the epoch."""

    @property
    def timestamp(self) -> float: ...
    @property
    def value(self) -> float: ...


class Context(Protocol):
    """What this policy reads of Ray's `AutoscalingContext`."""

    @property
    def raw_metrics(self) -> Mapping[str, Mapping[Any, Sequence[Point]]] | None: ...
    @property
    def target_num_replicas(self) -> int: ...
    @property
    def current_time(self) -> float | None: ...
    @property
    def policy_state(self) -> dict[str, Any]: ...


class PoolScaling:
    """The policy of one pool, as Ray calls it: `(context) -> (replicas, state)`.

    The window of samples is its own: a controller that starts again gathers anew, and the policy holds the number of
    replicas while figures are missing.
    """

    def __init__(
        self, *, pool: str, targets: str, least: int, most: int, platform_url: str = "", credential_file: str = ""
    ) -> None:
        """Read the limits, and report to the platform if it is named; only the platform can wake a pool at zero.

        Raises TargetsRefused for a plan that cannot be read or does not know the pool.
        """
        self._pool = pool
        self._limits = Limits.from_targets(Path(targets) if targets else None, pool, least=least, most=most)
        self._window: deque[tuple[float, dict[str, Sample]]] = deque()
        self._line = DemandLine(platform_url, Path(credential_file)) if platform_url else None
        if self._line is not None:
            self._line.start()

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """Decide. Ray keeps the state between calls, and adds keys of its own beside ours."""
        now, ordered = context.current_time or 0.0, context.target_num_replicas
        if self._window and now - self._window[-1][0] < _SAMPLE_SECONDS:
            return ordered, context.policy_state
        samples = samples_of(context.raw_metrics or {})
        while self._window and now - self._window[0][0] > WINDOW_SECONDS:
            self._window.popleft()
        before = self._window[0][1] if self._window else {}
        self._window.append((now, samples))
        known = context.policy_state.get(_STATE)
        state = PolicyState(**known) if known else PolicyState()
        arrivals = None if self._line is None else self._line.arrivals
        figures = gather(before, samples, at=now, replicas=ordered, arrivals=arrivals)
        wanted, state = decide(state, figures, self._limits)
        self._tell(figures, wanted, state)
        if wanted != ordered:
            log.info("pool %s: from %d replicas to %d (%s)", self._pool, ordered, wanted, state.why)
        return wanted, {_STATE: asdict(state)}

    def _tell(self, figures: PoolFigures, wanted: int, state: PolicyState) -> None:
        if self._line is None:
            return
        limits = self._limits
        report = PoolReport(
            pool=self._pool,
            replicas=figures.replicas,
            ready=figures.ready,
            wanted=wanted,
            least=limits.least,
            most=limits.most,
            ready_seconds=limits.ready_seconds,
            why=state.why,
        )
        self._line.report(report)


def samples_of(reported: Mapping[str, Mapping[Any, Sequence[Point]]]) -> dict[str, Sample]:
    """Return each replica's newest sample, from Ray's name → replica → points."""
    values: dict[str, dict[str, float]] = {}
    times: dict[str, float] = {}
    for name, by_replica in reported.items():
        for replica, points in by_replica.items():
            if points:
                values.setdefault(str(replica), {})[name] = points[-1].value
                times[str(replica)] = max(times.get(str(replica), 0.0), points[-1].timestamp)
    return {replica: Sample.of(figures, at=times[replica]) for replica, figures in values.items()}
