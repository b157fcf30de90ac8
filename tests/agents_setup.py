"""The agent frameworks that the tests run: `python -m tests.agents_setup` installs what is missing.

They are no dependencies of ours, and their pins would bind our versions: each group has a folder of its own, which is
on the path of the processes that run it. The groups are installed at the same time, since each waits for the network.
"""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.state import State
from tests.package_folder import install_folder, installing

GROUPS = ("agents", "llama-index")
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
    """Return the environment of a process that imports the group, installed now if it is missing.

    Raises MissingToolError if it cannot be installed.
    """
    install(group)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(folder(group))}


def install(group: str) -> None:
    """Install one group unless it is there. An interruption leaves nothing behind. Raises MissingToolError."""
    if _is_installed(group):
        return
    with installing(f"agents-{group}"):
        if not _is_installed(group):
            install_folder(
                folder(group),
                f"agent frameworks for the tests, {group}",
                [f"--requirement={requirements(group)}"],
                lambda made: (made / _STAMP).write_text(_wanted(group)),
            )


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
