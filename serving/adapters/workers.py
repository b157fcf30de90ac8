"""Threads that decrypt and copy while the engine computes, and give way to it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from serving.cores import available_cores

T = TypeVar("T")

# A worker that computes beside the engine's threads gets a tenth of a core, and a whole core on an idle machine. At a
# lower priority, a load on a busy machine takes a second; docs/adapter-memory.md has both figures.
NICENESS = 10


class LoadWorkers:
    """A pool of low-priority threads that together compute with half of the cores at most. `done` callbacks run in the
    worker's thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        # torch would give each worker a pool of as many threads as there are cores. They compete with the engine's.
        threads = max(1, available_cores() // (2 * count))
        self._pool = ThreadPoolExecutor(
            count, thread_name_prefix="adapter-load", initializer=_give_way, initargs=(threads,)
        )

    def submit(self, job: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        self._pool.submit(job).add_done_callback(done)

    def close(self) -> None:
        """Wait for running jobs and drop those that have not started."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _give_way(threads: int) -> None:
    torch.set_num_threads(threads)
    # On Linux each thread has its own niceness; threads that it starts (decryption of large packages) inherit it.
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
