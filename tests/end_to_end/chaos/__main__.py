"""The chaos run on a platform of its own: `python -m tests.end_to_end.chaos --points 300 --seed S --json FILE`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.end_to_end.chaos.audit import ChaosVerdict
from tests.end_to_end.chaos.run import ACTS, ChaosRun, order_of
from tests.end_to_end.platform import Platform, running_platform


def stopped_by_signals() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set from now on."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


async def run(
    platform: Platform, *, points: int, seed: int, stopped: threading.Event | None = None
) -> tuple[ChaosRun, ChaosVerdict]:
    """Let so many faults happen, in an order that the seed decides, or each kind once in little time for `points` 0.

    Return the run and its audit. Once `stopped` is set it ends after the fault of that moment, and audits those.
    """
    names = order_of(points, seed) if points else []
    chaos = ChaosRun(platform, seed=seed, lost_machines=max(1, names.count("lose")))
    try:
        await chaos.prepare()
        if not points:
            await chaos.short()
        for number, name in enumerate(names):
            if stopped is not None and stopped.is_set():
                break
            print(f"{number + 1}/{len(names)} {name}", flush=True)
            await ACTS[name][0](chaos)
        return chaos, await chaos.finish()
    finally:
        chaos.close()


def figures(chaos: ChaosRun, verdict: ChaosVerdict, *, seed: int) -> dict[str, Any]:
    """Return the run's figures as plain values."""
    times = sorted(verdict.first_token)
    return {
        "seed": seed,
        "points": sum(chaos.counted.values()),
        "kinds": dict(sorted(chaos.counted.items())),
        "predictions": verdict.predictions,
        "charged": verdict.charged,
        "free": verdict.free,
        "moved_to_another_replica": verdict.moved,
        "streams_cut": verdict.cut,
        "calls_while_the_gateway_was_away": verdict.refused,
        "delivered_tokens_not_charged": verdict.undercharged_tokens,
        "new_calls_during_faults": len(times),
        "new_call_first_token_p50_s": round(times[len(times) // 2], 3) if times else None,
        "new_call_first_token_max_s": round(times[-1], 3) if times else None,
        "told_max_s": round(verdict.told, 2),
        "settled_max_s": round(verdict.settled, 2),
        "contradictions": verdict.faults,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.chaos")
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with running_platform(samples=False) as platform:
        running = run(platform, points=chosen.points, seed=chosen.seed, stopped=stopped_by_signals())
        chaos, verdict = asyncio.run(running)
    told = figures(chaos, verdict, seed=chosen.seed)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(told, indent=2) + "\n")
    print(json.dumps(told, indent=2))
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
