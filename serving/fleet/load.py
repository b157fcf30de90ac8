"""One replica's load as a few numbers, for the policy that decides how many replicas there are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from serving.core import LatencyClass
from serving.engine import Engine

WINDOW_SECONDS = 10.0
WARM_STEPS = 100  # the first steps of a replica teach nothing: caches are cold and loads come all at once


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    running: int
    arrived: int
    finished: int
    reload_seconds: float
    busy_seconds: float


class LoadMeter:
    """Turns an engine's counters into rates over the last seconds. Call `read` about once a second.

    A figure that is not known yet is left out: the policy must not take it for 0.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._samples: deque[_Sample] = deque()

    def read(self, now: float) -> dict[str, float]:
        """Return name → number, the names being those of `PoolFigures`.

        arrivals: calls per second; service_s: seconds that a call holds a seat; busy: calls that run or wait
        wait_over_target: predicted wait over the class's target for a first token, of the worst class
        """
        engine, stats = self._engine, self._engine.stats
        self._samples.append(
            _Sample(
                now,
                stats.running,
                sum(counts.arrived for counts in stats.by_class.values()),
                stats.finished,
                engine.adapters.counters.reload_seconds,
                stats.busy_seconds,
            )
        )
        while len(self._samples) > 2 and now - self._samples[0].at > WINDOW_SECONDS:
            self._samples.popleft()
        figures = {
            "seats": float(engine.planner.limits.max_num_seqs),
            "busy": float(stats.running + stats.waiting),
            "pages_each": float(engine.adapters.gauges().pool_bytes_total // engine.adapters.page_bytes),
        }
        if stats.steps < WARM_STEPS:
            return figures
        targets, waits = engine.planner.targets, engine.admission.waits()
        figures["wait_over_target"] = max(
            wait / targets.of_class(one).ttft for one, wait in zip(LatencyClass, waits, strict=True)
        )
        return figures | self._rates()

    def _rates(self) -> dict[str, float]:
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at - first.at
        if seconds <= 0:
            return {}
        rates = {"arrivals": (last.arrived - first.arrived) / seconds}
        held = sum(
            before.running * (after.at - before.at)
            for before, after in zip(self._samples, list(self._samples)[1:], strict=False)
        )
        if last.finished > first.finished and held:  # Little's law
            rates["service_s"] = held / (last.finished - first.finished)
        if last.busy_seconds > first.busy_seconds:
            reload = last.reload_seconds - first.reload_seconds
            rates["reload_share"] = reload / (last.busy_seconds - first.busy_seconds)
        return rates
