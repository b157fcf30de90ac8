"""Threads that decrypt and copy while the engine computes, and give way to it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")

# A worker that computes beside the engine's threads gets a tenth of a core, on an idle machine all of it. Lower, and a
# load on a busy machine takes a second; see docs/adapter-memory.md for both figures.
NICENESS = 10


class LoadWorkers:
    """A pool of low-priority threads. Finished jobs are told of in the worker's thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="adapter-load", initializer=_give_way)

    def submit(self, job: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        self._pool.submit(job).add_done_callback(done)

    def close(self) -> None:
        """Waits for what runs; what has not started is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _give_way() -> None:
    # torch would give each worker a pool of threads, more of them than cores in all. They compete with the engine's.
    torch.set_num_threads(1)
    # On Linux a thread has a niceness of its own, and threads it starts (decryption of large packages) inherit it.
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
