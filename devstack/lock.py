"""One stack per state folder: the kernel drops the lock with its owner, so a crash never leaves a stale lock."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

from devstack.errors import LocalStackError
from devstack.private_file import write_private
from devstack.state import State


class StackLock:
    """Holds `run/lock`; `run/stack.json` tells other processes what is running."""

    def __init__(self, state: State) -> None:
        """Take the lock. Raises LocalStackError when another stack runs on this state folder."""
        self._info = state.run / "stack.json"
        self._descriptor = os.open(state.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            running = read_stack(state)
            where = f" at {running['url']} (pid {running['pid']})" if running else ""
            raise LocalStackError(
                f"the platform is already running{where}.\nUse it, or stop it with `make stop`."
            ) from None
        os.set_inheritable(self._descriptor, False)
        self._info.unlink(missing_ok=True)

    def publish(self, info: dict[str, Any]) -> None:
        """Tell other processes where the stack is."""
        write_private(self._info, json.dumps(info))

    def release(self) -> None:
        """Withdraw what was published and drop the lock."""
        self._info.unlink(missing_ok=True)
        os.close(self._descriptor)


def is_running(state: State) -> bool:
    """Return whether some process holds the lock now."""
    try:
        descriptor = os.open(state.run / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_stack(state: State) -> dict[str, Any] | None:
    """Return what the running stack published; None while it starts and when none runs."""
    try:
        info: dict[str, Any] = json.loads((state.run / "stack.json").read_text())
    except (OSError, ValueError):
        return None
    return info
