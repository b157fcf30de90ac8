"""The agent frameworks that the tests run: `python -m tests.agents_setup` installs what is missing.

They are no dependencies of ours, and their pins would bind our versions: each group has a folder of its own, which is
on the path of the processes that run it. The groups are installed at the same time, since each waits for the network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.state import State

GROUPS = ("agents", "llama-index")
INSTALL_SECONDS = 1200
_STAMP = "installed-from"


def folder(group: str) -> Path:
    """Return the folder of a group, installed or not."""
    return State.open().root / "agents" / group


def requirements(group: str) -> Path:
    """Return the list of the group's packages, each with its version."""
    return Path(__file__).parent / "agents" / "packages" / f"{group}.txt"


def alone() -> list[str]:
    """Return the command of a Python that, in such an environment, sees the group's packages and none of ours."""
    return [sys.executable, "-S"]


def environment(group: str) -> dict[str, str]:
    """Return the environment of a process that imports the group. Raises LocalStackError if it is not installed."""
    if not _is_installed(group):
        raise LocalStackError(f"The packages of {group} are missing.\nInstall: {sys.executable} -m tests.agents_setup")
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(folder(group))}


def install(group: str) -> None:
    """Install one group unless it is there. An interruption leaves nothing behind. Raises LocalStackError."""
    if _is_installed(group):
        return
    started = time.monotonic()
    print(f"  agent frameworks for the tests, {group} …", flush=True)
    target = folder(group)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        made = Path(temporary) / group
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        # Not compiled: most modules of these packages are never imported.
        options = ["--progress-bar=off", "--no-deps", "--no-compile", f"--target={made}"]
        command = [*pip, *options, f"--requirement={requirements(group)}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise LocalStackError(f"{group}: pip took more than {INSTALL_SECONDS} s") from error
        if done.returncode != 0:
            raise LocalStackError(f"{group}: pip failed\n{(done.stderr or done.stdout)[-2000:]}")
        (made / _STAMP).write_text(_wanted(group))
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    print(f"  agent frameworks for the tests, {group}: {time.monotonic() - started:.0f} s", flush=True)


def _wanted(group: str) -> str:
    return hashlib.sha256(requirements(group).read_bytes() + sys.version.encode()).hexdigest()


def _is_installed(group: str) -> bool:
    stamp = folder(group) / _STAMP
    return stamp.exists() and stamp.read_text() == _wanted(group)


def main() -> int:
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(install, GROUPS))
    except LocalStackError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
