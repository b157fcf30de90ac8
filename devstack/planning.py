"""`make plan`: this machine is calibrated, and a fleet planned for what the platform here was asked.

A platform that nobody has asked runs its demonstration first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from devstack.console import heading, line, step
from devstack.demo.process import running_stack
from devstack.demo.run import run_demo
from devstack.errors import LocalStackError
from devstack.lock import is_running, read_stack
from devstack.state import REPOSITORY, State

EXAMPLE = REPOSITORY / "examples" / "plan"
ACCELERATOR = "this-machine"
_EXPORT_SECONDS = 120
_PLAN_SECONDS = 900


def make_plan(state: State, *, seconds: float) -> int:
    """Make a plan, print it, and say where its page lies. Returns the exit status."""
    folder = state.root / "plan"
    folder.mkdir(mode=0o700, exist_ok=True)
    usage = folder / "usage.json"
    if not is_running(state) and not _export_from_stopped(state, usage):
        line("nobody has asked this platform for anything yet: its demonstration makes the usage")
        if run_demo(state) != 0:
            raise LocalStackError("the demonstration failed; its reasons are above.")
        _export_from_stopped(state, usage)
    elif is_running(state):
        _export(state, usage)
    if not _asked(usage):
        raise LocalStackError(
            "the platform that runs here was asked for nothing yet.\nAsk it, or stop it: `make stop`."
        )
    heading("Calibration: steps of a real replica on this machine")
    profile = folder / "profile.json"
    _capacity("calibrate", "--model", str(state.base_model), "--seconds", f"{seconds:g}", "--out", str(profile))
    heading("Plan")
    files = [
        part for name in ("catalogue", "prices", "promises") for part in (f"--{name}", str(EXAMPLE / f"{name}.toml"))
    ]
    _capacity("plan", "--usage", str(usage), "--profile", f"{ACCELERATOR}={profile}", *files, "--out", str(folder))
    heading("The page")
    line(f"{folder / 'plan.html'} in a browser; plan.md, plan.json, targets.json and the pictures are beside it")
    line(
        f"prices and promises are examples: write your own beside {EXAMPLE.relative_to(REPOSITORY)}/ (docs/capacity.md)"
    )
    return 0


def _export_from_stopped(state: State, usage: Path) -> bool:
    """Start the platform for its usage file; return whether there is a call in it."""
    with running_stack(state):
        _export(state, usage)
    return _asked(usage)


def _export(state: State, usage: Path) -> None:
    with step("usage by hour, without any customer"):
        info = read_stack(state)
        if info is None:
            raise LocalStackError("the platform is still starting.\nTry again in a few seconds.")
        command = [sys.executable, str(REPOSITORY / "manage.py"), "usage_file", "--with-this-hour"]
        done = subprocess.run(
            command, env=info["environment"], capture_output=True, text=True, timeout=_EXPORT_SECONDS, check=False
        )
        if done.returncode != 0:
            raise LocalStackError(f"the usage cannot be read:\n{done.stderr[-2000:]}")
        usage.write_text(done.stdout)


def _asked(usage: Path) -> bool:
    bases = json.loads(usage.read_text())["bases"].values()
    return any(sum(one["served"]) for base in bases for one in base["classes"].values())


def _capacity(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "capacity", *arguments], cwd=REPOSITORY, timeout=_PLAN_SECONDS, check=False
    )
    if done.returncode != 0:
        raise LocalStackError(f"`python -m capacity {arguments[0]}` failed; its reason is above.")
