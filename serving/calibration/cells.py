"""Recorded arrivals run on a real engine, open or closed loop: what a plan's prediction is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from serving.calibration.driver import Driver
from serving.calibration.grid import GREEDY
from serving.core import AdapterRef, LatencyClass, Request, Sequence


@dataclass(frozen=True, slots=True)
class Cell:
    """A trace. warm: adapters that are resident before its first call"""

    warm: tuple[str, ...]
    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One call. prompt: its tokens; scope: which calls share prefixes"""

    at: float
    latency_class: int
    adapter: str | None
    scope: str
    prompt: tuple[int, ...]
    output: int


@dataclass(slots=True)
class Call:
    """The outcome of an arrival: the times of its tokens, in seconds of the cell's clock."""

    at: float
    latency_class: int
    cached: int
    cold: bool
    tokens: list[float]


def run_cell(driver: Driver, cell: Cell) -> list[Call]:
    """Run arrivals, ascending in `at`, and return what became of each, in their order. Idle time is jumped over."""
    engine, clock, arrivals = driver.engine, driver.clock, cell.arrivals
    for digest in cell.warm:
        driver.accept(Request(f"warm {digest}", "cell", "warm", AdapterRef(digest), (20,) * 4, GREEDY, 1))
        driver.finish()
    calls: list[Call] = []
    sequences: dict[str, tuple[Sequence, Call]] = {}
    began, place = clock(), 0
    while place < len(arrivals) or driver.busy:
        now = clock() - began
        if not driver.busy and not engine.adapters.loading and place < len(arrivals):
            clock.jump(began + arrivals[place].at)
            now = clock() - began
        while place < len(arrivals) and arrivals[place].at <= now:
            call = _accept(driver, arrivals[place], place, sequences)
            calls.append(call)
            place += 1
        driver.turn()
        now = clock() - began
        for name, (sequence, call) in list(sequences.items()):
            while len(call.tokens) < sequence.output_tokens:
                call.tokens.append(now)
            if sequence.output_tokens >= sequence.request.max_tokens:
                call.cached = sequence.cached_tokens
                del sequences[name]
    return calls


def _accept(driver: Driver, arrival: Arrival, number: int, sequences: dict[str, tuple[Sequence, Call]]) -> Call:
    name = f"w{number}-{id(arrival)}"
    request = Request(
        name,
        "cell",
        arrival.scope,
        AdapterRef(arrival.adapter),
        arrival.prompt,
        GREEDY,
        arrival.output,
        latency_class=LatencyClass(arrival.latency_class),
        speculate=False,
    )
    cold = not driver.engine.adapters.is_ready(arrival.adapter)
    call = Call(arrival.at, arrival.latency_class, 0, cold, [])
    driver.accept(request)
    sequences[name] = _find(driver, name), call
    return call


def _find(driver: Driver, name: str) -> Sequence:
    return next(s for s in driver.engine.planner.sequences() if s.request.request_id == name)
