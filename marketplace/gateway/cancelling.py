"""Loops that end when they are told to, whatever library they wait in."""

from __future__ import annotations

import asyncio


def stop_if_cancelled() -> None:
    """Raise CancelledError if this task has been cancelled and still runs.

    `asyncio.wait_for` loses a cancellation that comes as what it waits for ends, before Python 3.12 (python/cpython
    issue 86296). The client of Valkey sends with it: a loop around that client asks here in each turn, or it may never
    end, nor the process that waits for it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
