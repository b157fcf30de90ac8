"""The fault run on a platform of its own: `python -m tests.end_to_end.faults --kills N --in-flight M --bodies B`."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter

from tests.end_to_end.faults.audit import CLOSE_SECONDS, Verdict
from tests.end_to_end.faults.run import FaultRun
from tests.end_to_end.platform import Platform, running_platform

VICTIMS = ("web", "web", "web", "serving", "worker", "beat", "postgres", "postgres", "valkey", "scripted")


async def run(platform: Platform, *, kills: int, in_flight: int, bodies: int, seed: int) -> tuple[FaultRun, Verdict]:
    """Run the edges and the hostile tenant, then `kills` deaths in an order that the seed decides; return the run and
    its audit."""
    choose = random.Random(seed)
    faults = FaultRun(platform, seed=seed, in_flight=in_flight)
    try:
        await faults.prepare()
        await faults.edges()
        await faults.attack(bodies=bodies, rounds=10)
        if kills:
            await faults.remove_a_replica()
            await faults.kill("web")
        for number in range(1, kills):
            victim = choose.choice(VICTIMS)
            print(f"{number}/{kills} {victim}", flush=True)
            if victim == "scripted":
                await faults.crash_scripted()
            else:
                await faults.kill(victim, in_flight=min(in_flight, 100), immediate=choose.random() < 0.7)
            if number % 20 == 0:
                await faults.edges()
        return faults, await faults.settle_and_audit(close_seconds=CLOSE_SECONDS)
    finally:
        await faults.finish()


def report(faults: FaultRun, verdict: Verdict) -> None:
    """Print the figures, then every contradiction."""
    print(f"\nfaults: {sum(faults.counted.values())}", dict(sorted(faults.counted.items())))
    for attack in faults.attacks:
        quiet, attacked = attack.p95("quiet"), attack.p95("attacked")
        print(f"the neighbour's calls, p95: {quiet:.2f} s, under attack {attacked:.2f} s, {attacked / quiet:.1f} x")
    print("answers:", dict(Counter(call.outcome for call in faults.client.calls).most_common()))
    hostile = Counter(f"{call.kind}: {call.outcome}" for call in faults.hostile_calls)
    print("answers to the hostile tenant:", dict(hostile.most_common()))
    print(
        f"predictions: {verdict.predictions}, charged {verdict.charged}, refunded {verdict.refunded}, "
        f"corrected {verdict.corrected}, payouts that arrived {verdict.paid_out}, "
        f"free {verdict.free}; {verdict.charged_nano_usd} nano-dollars; slowest hold {verdict.slowest_close:.1f} s"
    )
    print("\n".join(verdict.faults) or "the books are right")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.faults")
    parser.add_argument("--kills", type=int, default=150)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--bodies", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}")
    with running_platform(samples=False) as platform:
        started = run(platform, kills=chosen.kills, in_flight=chosen.in_flight, bodies=chosen.bodies, seed=chosen.seed)
        faults, verdict = asyncio.run(started)
    report(faults, verdict)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
