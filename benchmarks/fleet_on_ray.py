"""A fleet whose head is killed and comes back, with streams running all the time.

    python -m benchmarks.fleet_on_ray [--seconds 30] [--out FOLDER]

It needs Linux, `unshare` and `ip`: `ray start` listens on all interfaces, so all of it (PostgreSQL, the platform, Ray,
the callers) runs in a network namespace that has a loopback alone. Counts do not depend on this machine's speed; times
do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine

ROOT = Path(__file__).resolve().parents[1]
TEST = "tests/together/long_head_lost.py"


def text(told: Mapping[str, Any]) -> str:
    """Return the figures of a run as Markdown."""
    rows = [
        ("streams answered, of them while the head was away", f"{told['answered']:,}, {told['answered_while_away']:,}"),
        ("streams that failed", told["failed"]),
        ("replicas that the head's return replaced", told["replaced_by_its_return"]),
        ("a replica killed after that is replaced by the new head, s", told["replaced_by_the_new_head_s"]),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"Head and controller killed, back after {told['head_away_s']:g} s.\n\n| | |\n|---|---|\n{table}"


def main() -> int:
    """Run it, print the figures and write them; the exit status is that of the test."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_on_ray")
    parser.add_argument("--seconds", type=float, default=30, help="for how long the head is away")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / machine.cpu_kind())
    chosen = parser.parse_args()
    about = machine.describe()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        environment = os.environ | {"INTARSIA_HEAD_AWAY": str(chosen.seconds), "INTARSIA_FIGURES": str(figures)}
        run = f"ip link set lo up && exec {sys.executable} -m pytest -q -n 0 {TEST}"
        # Not as root of a namespace of users: PostgreSQL runs as another user there, or refuses.
        user = [] if os.geteuid() == 0 else ["--map-current-user", "--keep-caps"]
        done = subprocess.run(["unshare", *user, "--net", "sh", "-c", run], cwd=ROOT, env=environment)
        if figures.exists():
            told = json.loads(figures.read_text())
            print(text(told))
            print(machine.write_suite(chosen.out, "fleet_on_ray", {"machine": about, **told}))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
