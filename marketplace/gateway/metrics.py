"""Prometheus metrics of the hot path: how long each phase of a prediction takes, and refusals by code.

A process with `PROMETHEUS_MULTIPROC_DIR` writes them to that folder, so that one scrape has those of all processes.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY = CollectorRegistry()
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
PHASES = ("admit", "hold", "dispatch", "answer")
_PHASE = Histogram(
    "intarsia_gateway_phase_seconds", "Time in a phase of a prediction", ["phase"], registry=REGISTRY, buckets=_SECONDS
)
_REFUSED = Counter("intarsia_gateway_refusals", "Requests to /v1 that were refused", ["code"], registry=REGISTRY)
_OF_PHASE = {phase: _PHASE.labels(phase) for phase in PHASES}


class Stopwatch:
    """The phases of one prediction, each from the end of the one before."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        """Start the first phase."""
        self._since = time.perf_counter()

    def end(self, phase: str) -> None:
        """End a phase, and start the next."""
        now = time.perf_counter()
        _OF_PHASE[phase].observe(now - self._since)
        self._since = now


def count_refusal(code: str) -> None:
    """Count a refused request. A replica's own code may be any text: what is no name of ours is `other`."""
    _REFUSED.labels(code if code.isidentifier() and len(code) <= 40 else "other").inc()
