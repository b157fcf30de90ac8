"""Simulated traces through the real scheduler with a simulated disk, as the tests run them, on every core."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

from tests.serving.scheduler.simulator import Trace

_KINDS = ("mixed", "fair", "flood")
_AT_ONCE = 50


def run_traces(count: int, processes: int) -> dict[str, int]:
    """Run traces 0 to `count`; a trace fails when any promise of the scheduler is broken."""
    out = {"count": count, "failed": 0, "restored": 0, "given_up": 0, "steps": 0}
    with ProcessPoolExecutor(processes) as pool:
        for failed, restored, given_up, steps in pool.map(_run, range(count), chunksize=_AT_ONCE):
            out["failed"] += failed
            out["restored"] += restored
            out["given_up"] += given_up
            out["steps"] += steps
    return out


def _run(seed: int) -> tuple[bool, int, int, int]:
    kind = _KINDS[seed % len(_KINDS)]
    try:
        outcome = Trace(seed, kind, levels=True).run()
    except Exception as error:
        print(f"Trace({seed}, {kind!r}, levels=True): {error}", flush=True)
        return True, 0, 0, 0
    return False, outcome.restored, outcome.given_up, outcome.steps
