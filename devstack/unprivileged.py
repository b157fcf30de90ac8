"""PostgreSQL refuses to run as root: pick an unprivileged account for it, and a folder that account can reach.

Permissions of parent folders are never changed. Where the account cannot walk to the state folder (a clone under
/root, say), its data and a copy of its program live in a folder of their own under /var/lib instead.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devstack.errors import LocalStackError


@dataclass(frozen=True)
class Account:
    """The account that a server runs as; with `uid` None it is our own."""

    uid: int | None
    gid: int | None

    def popen_arguments(self) -> dict[str, object]:
        """Return keyword arguments for subprocess."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give `path` (one file or folder, not its parents) to the account."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def server_account() -> Account:
    """Return our own account, or an unprivileged one when we are root. Raises LocalStackError when there is none."""
    if os.geteuid() != 0:
        return Account(None, None)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise LocalStackError(
        "PostgreSQL cannot run as root and there is no `postgres` or `nobody` account.\nRun as a user."
    )


def can_run(account: Account, program: Path) -> bool:
    """Return whether the account can reach and execute `program` in its place."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, timeout=20, cwd="/", **account.popen_arguments()
        )  # type: ignore[call-overload]
    except OSError:
        return False
    return bool(done.returncode == 0)


def can_enter(account: Account, folder: Path) -> bool:
    """Return whether the account can walk to `folder` (every parent has the needed execute bit)."""
    if account.uid is None:
        return True
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)], capture_output=True, cwd="/", **account.popen_arguments()
        )  # type: ignore[call-overload]
    except OSError:
        return False
    return bool(done.returncode == 0)


def outside_folder(instance: str) -> Path:
    """Return a folder that an unprivileged account can reach, one per state folder (`instance` is its random id)."""
    return Path("/var/lib/intarsia") / instance


def copy_program(source: Path, destination: Path) -> None:
    """Copy an installed program tree once; an interrupted copy is redone."""
    if destination.exists():
        return
    partial = destination.with_name(destination.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, symlinks=True)
    for folder, _, files in os.walk(partial):
        os.chmod(folder, 0o755)
        for name in files:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
    partial.rename(destination)
