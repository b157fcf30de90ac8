"""`python -m benchmarks.fleet_on_ray`: a fleet whose head is killed and comes back, with streams running all the time.

It needs Linux, `unshare` and `ip`: `ray start` listens on all interfaces, so all of it (PostgreSQL, the platform, Ray,
the callers) runs in a network namespace that has a loopback alone. Prints and writes the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import describe

ROOT = Path(__file__).resolve().parents[1]
TEST = "tests/serving/fleet/long_head_lost.py"


def main() -> int:
    """Run; the exit status is that of the test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="for how long the head is away")
    parser.add_argument("--output", type=Path, help="write machine and figures there, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        environment = os.environ | {"INTARSIA_HEAD_AWAY": str(arguments.seconds), "INTARSIA_FIGURES": str(figures)}
        run = f"ip link set lo up && exec {sys.executable} -m pytest -q -n 0 {TEST}"
        # Not as root of a namespace of users: PostgreSQL runs as another user there, or refuses.
        user = [] if os.geteuid() == 0 else ["--map-current-user", "--keep-caps"]
        done = subprocess.run(["unshare", *user, "--net", "sh", "-c", run], cwd=ROOT, env=environment)
        if figures.exists():
            found = json.loads(figures.read_text())
            for name, value in found.items():
                print(f"{name:<28} {value}")
            if arguments.output is not None:
                arguments.output.write_text(json.dumps({"machine": describe(), "fleet_on_ray": found}, indent=1) + "\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
