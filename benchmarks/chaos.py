"""Bad luck for a fleet of three real replicas: at least 300 faults, and an audit of every prediction.

    python -m benchmarks.chaos [--points 300] [--seed 1] [--out FOLDER]

Faults: kill -9, SIGSTOP, lost machines, partitions, full disks, clock steps, and the gateway and Valkey killed
(`tests/end_to_end/chaos`). It takes some ten seconds for each; Ctrl-C ends it after the fault of that moment, and what
was done is audited. Counts do not depend on this machine's speed; times do.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.machine import Part
from benchmarks.results import markdown
from tests.end_to_end.chaos.__main__ import figures, run, stopped_by_signals
from tests.end_to_end.platform import running_platform


def parts(told: Mapping[str, Any]) -> list[Part]:
    """Return what a reader is shown of a run."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in told["kinds"].items())
    rows = [
        ("predictions; charged, free", f"{told['predictions']:,}; {told['charged']:,}, {told['free']:,}"),
        ("answered by a second replica", f"{told['moved_to_another_replica']:,}"),
        ("streams cut, each told and charged by its checkpoint", f"{told['streams_cut']:,}"),
        ("calls that got nothing while the gateway was away", f"{told['calls_while_the_gateway_was_away']:,}"),
        ("delivered tokens that were not charged", f"{told['delivered_tokens_not_charged']:,}"),
        (
            f"first token of {told['new_calls_during_faults']:,} new calls, p50 and longest, s",
            f"{told['new_call_first_token_p50_s']} and {told['new_call_first_token_max_s']}",
        ),
        ("a caller told, longest, s", told["told_max_s"]),
        ("a hold closed without its replica's return, longest, s", told["settled_max_s"]),
        ("contradictions found by the audit", len(told["contradictions"])),
    ]
    return [f"{told['points']} faults: {kinds}.", machine.table(["", ""], rows)]


def main() -> int:
    """Run it, print the figures and write them. The exit status is 1 where the audit finds anything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / machine.cpu_kind())
    chosen = parser.parse_args()
    about = machine.describe()
    with running_platform(samples=False) as platform:
        running = run(platform, points=chosen.points, seed=chosen.seed, stopped=stopped_by_signals())
        chaos, verdict = asyncio.run(running)
    told = figures(chaos, verdict, seed=chosen.seed)
    print(markdown(parts(told)), *told["contradictions"], sep="\n")
    print(machine.write_suite(chosen.out, "chaos", {"machine": about}, parts(told)))
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
