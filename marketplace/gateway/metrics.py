"""Prometheus metrics of the hot path: how long each phase of a prediction takes, and refusals by code.

A process with `PROMETHEUS_MULTIPROC_DIR` writes them to that folder, so that one scrape has those of all processes.
"""

from __future__ import annotations

import time
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
PHASES = ("admit", "hold", "dispatch", "answer")
_PHASE = Histogram(
    "intarsia_gateway_phase_seconds", "Time in a phase of a prediction", ["phase"], registry=REGISTRY, buckets=_SECONDS
)
_REFUSED = Counter("intarsia_gateway_refusals", "Requests to /v1 that were refused", ["code"], registry=REGISTRY)
OUTCOMES = ("ok", "refused", "failed", "gone")
_REQUESTS = Counter(
    "intarsia_gateway_requests", "Predictions asked of /v1 by how they ended", ["outcome"], registry=REGISTRY
)
_VIEWS = Counter(
    "intarsia_gateway_fleet_views",
    "Views of replicas that came over their own links or from other processes, and whether one before them was missing",
    ["source", "whole"],
    registry=REGISTRY,
)
_LINKS = Gauge(
    "intarsia_gateway_fleet_links",
    "Fleet links that are open",
    registry=REGISTRY,
    multiprocess_mode="livesum",
)
_OF_VIEWS = {(source, whole): _VIEWS.labels(source, str(whole)) for source in ("link", "relay") for whole in (0, 1)}
_OF_OUTCOME = {outcome: _REQUESTS.labels(outcome) for outcome in OUTCOMES}
_OF_PHASE = {phase: _PHASE.labels(phase) for phase in PHASES}


class Phases(Protocol):
    """A part that is told of each phase that ended."""

    def phase(self, name: str) -> None:
        """Note the end of a phase."""


class Stopwatch:
    """The phases of one prediction, each from the end of the one before."""

    __slots__ = ("_since", "_trace")

    def __init__(self, trace: Phases | None = None) -> None:
        """Start the first phase. `trace` is told of the phases, too."""
        self._since = time.perf_counter()
        self._trace = trace

    def end(self, phase: str) -> None:
        """End a phase, and start the next."""
        now = time.perf_counter()
        _OF_PHASE[phase].observe(now - self._since)
        self._since = now
        if self._trace is not None:
            self._trace.phase(phase)


def count_refusal(code: str) -> None:
    """Count a refused request. A replica's own code may be any text: what is no name of ours is `other`."""
    _REFUSED.labels(code if code.isidentifier() and len(code) <= 40 else "other").inc()


def count_request(outcome: str) -> None:
    """Count a request for a prediction by its outcome, one of `OUTCOMES`: `failed` is what the platform answers for."""
    _OF_OUTCOME[outcome].inc()


def count_view(source: str, *, whole: bool) -> None:
    """Count a view of a replica. source: `link` or `relay`; whole: no view before it is missing."""
    _OF_VIEWS[source, whole].inc()


def note_links(count: int) -> None:
    """Note how many fleet links are open."""
    _LINKS.set(count)
