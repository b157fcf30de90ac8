"""Measure the gateway: `python -m benchmarks.gateway [--litellm PATH]`. The exit status is 1 where a bar is missed."""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gateway import peer_litellm, report
from benchmarks.gateway.platform import Platform, fdatasync_ms, platform
from benchmarks.gateway.scenarios import Rate, added_latency, killed, peer_throughput, running_out, throughput
from benchmarks.machine import RESULTS, cpu_kind, describe, write_suite
from benchmarks.results import markdown

GATEWAYS = 2
WALLETS = 100
PARALLEL, AFFORDABLE = 1_000, 400
PEER_CONNECTIONS = 32  # LiteLLM answers fewer requests per second with more


def _median(runs: list[Rate]) -> dict[str, Any]:
    """Return the run of the median rate, and all rates."""
    middle = sorted(runs, key=lambda run: run.per_second)[len(runs) // 2]
    return asdict(middle) | {"runs_per_second": [run.per_second for run in runs]}


def measure(running: Platform, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the whole report, but for the machine."""
    seconds = arguments.seconds
    result: dict[str, Any] = {"gateways": GATEWAYS, "fdatasync_ms": [fdatasync_ms(running.root)]}
    wallets, hot, peer, version = [], [], [], ""
    for _ in range(arguments.runs):
        wallets.append(throughput(running, running.keys, seconds=seconds))
        hot.append(throughput(running, running.keys[:1], seconds=seconds))
        if arguments.litellm:
            with peer_litellm.litellm(arguments.litellm.absolute(), running, processes=GATEWAYS) as proxy:
                version = proxy.version
                load = (proxy.ports, peer_litellm.KEY, peer_litellm.MODEL, proxy.cpu_seconds)
                peer.append(peer_throughput(*load, seconds=seconds, connections=PEER_CONNECTIONS))
        result["fdatasync_ms"].append(fdatasync_ms(running.root))
    result |= {"wallets": _median(wallets), "one_wallet": _median(hot)}
    if peer:
        result["litellm"] = _median(peer) | {"version": version}
    result["fdatasync_ms"] = round(statistics.median(result["fdatasync_ms"]), 3)
    result["latency"] = added_latency(running, per_second=100, seconds=seconds)
    result["running_out"] = running_out(running, parallel=PARALLEL)
    result["killed"] = killed(running, parallel=64)
    return result


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litellm", type=Path, help="LiteLLM's command in an environment of its own")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the results; by default that of this kind of machine")
    arguments = parser.parse_args()
    about = describe()
    with platform(gateways=GATEWAYS, wallets=WALLETS, affordable=AFFORDABLE) as running:
        result = {"machine": about, **measure(running, arguments)}
    parts = report.parts(result)
    write_suite(arguments.out or RESULTS / cpu_kind(about), "gateway", result, parts)
    print(markdown(parts))
    return 0 if all(promise.kept for promise in report.promises(result)) else 1


if __name__ == "__main__":
    sys.exit(main())
