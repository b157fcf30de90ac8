"""`python -m devstack run | demo | plan | fleet-update | fleet-status | stop | status | code | manage | clean`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from devstack.console import console, fail
from devstack.errors import LocalStackError
from devstack.lock import is_running, read_stack
from devstack.postgres import remove_postgres
from devstack.state import REPOSITORY, State
from devstack.totp import totp

DEFAULT_PORT = 8000
STOP_SECONDS = 120


def _run(arguments: argparse.Namespace) -> int:
    from devstack.stack import LocalStack

    # Port 0 takes a free one; the demo asks for that, so that it never collides with anything.
    port = None if arguments.port == 0 else arguments.port
    stack = LocalStack(State.open(), port=port, pay_at_once=arguments.pay_at_once, fleet=arguments.fleet)
    stack.serve(samples=arguments.samples)
    return 0


def _fleet_update(arguments: argparse.Namespace) -> int:
    """Have the running fleet read the settings of its pools again."""
    info = read_stack(State.open())
    pid = info["pids"].get("fleet") if info else None
    if pid is None:
        raise LocalStackError("no fleet runs.\nStart it with `make fleet`.")
    os.kill(int(pid), signal.SIGHUP)
    console.print("the fleet reads the settings of its pools: what changed is updated, replica by replica")
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from devstack.demo.run import run_demo

    return run_demo(State.open())


def _plan(arguments: argparse.Namespace) -> int:
    from devstack.planning import make_plan

    return make_plan(State.open(), seconds=arguments.seconds)


def _fleet_status(arguments: argparse.Namespace) -> int:
    """Show the running fleet with `intarsia-fleet status`, as the sample member of staff."""
    from devstack.samples import staff_key

    state = State.open()
    info = read_stack(state)
    if info is None:
        raise LocalStackError("the platform does not run.\nStart it with `make fleet`.")
    environment = os.environ | {"INTARSIA_URL": info["url"], "INTARSIA_TOKEN": staff_key(state, info["url"])}
    command = [str(Path(sys.executable).with_name("intarsia-fleet")), "status"]
    return subprocess.run(command, env=environment | {"PYTHONPATH": str(REPOSITORY)}).returncode


def _stop(arguments: argparse.Namespace) -> int:
    state = State.open()
    if not is_running(state):
        console.print("nothing is running")
        return 0
    info = read_stack(state)
    if info is None:
        raise LocalStackError("the platform is still starting or already stopping.\nTry again in a few seconds.")
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(info["pid"]), signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while is_running(state):
        if time.monotonic() > deadline:
            raise LocalStackError(f"pid {info['pid']} did not stop within {STOP_SECONDS} s.\nSee {state.logs}.")
        time.sleep(0.1)
    console.print("stopped")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    state = State.open()
    if not is_running(state):
        console.print("nothing is running")
        return 1
    info = read_stack(state)
    console.print(f"running at {info['url']} (pid {info['pid']})" if info else "starting")
    return 0


def _code(arguments: argparse.Namespace) -> int:
    """Print the code with which the sample member of staff signs in now."""
    console.print(totp(State.open().secrets["sample_totp"]))
    return 0


def _manage(arguments: argparse.Namespace) -> int:
    """Run a management command in the environment of the running platform."""
    info = read_stack(State.open())
    if info is None:
        raise LocalStackError("the platform does not run.\nStart it with `make run`.")
    command = [sys.executable, str(REPOSITORY / "manage.py"), *arguments.command]
    return subprocess.run(command, env=info["environment"]).returncode


def _clean(arguments: argparse.Namespace) -> int:
    state = State.open()
    if is_running(state):
        raise LocalStackError("the platform is running.\nStop it first with `make stop`.")
    remove_postgres(state.secrets["instance"])
    for entry in state.root.iterdir():
        if entry.name != "base":  # the converted base model is derived data, slow to make and never stale
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    console.print(f"removed everything in {state.root} but the base model")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devstack", description="The platform on this machine.")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="start everything and keep it running")
    run.add_argument("--port", type=int, default=DEFAULT_PORT, help="port of the web process; 0 takes a free one")
    run.add_argument("--samples", action=argparse.BooleanOptionalAction, default=True, help="publish the sample models")
    run.add_argument("--pay-at-once", action="store_true", help="creators' earnings skip the reserve: for the demo")
    run.add_argument("--fleet", action="store_true", help="replicas on Ray Serve, in two pools, instead of one")
    run.set_defaults(action=_run)
    for name, action, text in (
        ("demo", _demo, "start everything, run the whole business once, stop"),
        ("fleet-update", _fleet_update, "have the fleet read the settings of its pools again"),
        ("fleet-status", _fleet_status, "show pools, replicas and the last events of the fleet"),
        ("stop", _stop, "stop the platform"),
        ("code", _code, "print the code with which the sample member of staff signs in now"),
        ("status", _status, "say whether the platform runs, and where"),
        ("clean", _clean, "delete all state but the base model"),
    ):
        commands.add_parser(name, help=text).set_defaults(action=action)
    plan = commands.add_parser("plan", help="calibrate this machine, and plan a fleet for what the platform was asked")
    plan.add_argument("--seconds", type=float, default=90.0, help="for the calibration")
    plan.set_defaults(action=_plan)
    manage = commands.add_parser("manage", help="run a command of manage.py on the running platform")
    manage.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    manage.set_defaults(action=_manage)
    arguments = parser.parse_args()
    try:
        return int(arguments.action(arguments))
    except LocalStackError as error:
        fail(str(error))
        return 1
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename or ''}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
