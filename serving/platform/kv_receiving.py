"""The blocks of one pull as they come: while a run of them is received, the engine places those before."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from http.client import HTTPException

from serving.block_copies import wait_for
from serving.engine import Engine
from serving.platform.errors import PullFailed
from serving.platform.kv_runs import RunMemories, run_blocks
from serving.scheduler.exchange import Arrival, Copied

ENGINE_SECONDS = 5.0


class Receiving:
    """Brings `count` blocks of an arrival, in one thread.

    stopped: set where nothing more is wanted
    """

    def __init__(
        self, engine: Engine, memories: RunMemories, arrival: Arrival, count: int, stopped: threading.Event
    ) -> None:
        exchange = engine.planner.exchange
        self._engine, self._memories, self._arrival = engine, memories, arrival
        self._count, self._stopped, self._block_bytes = count, stopped, exchange.block_bytes
        self._each = run_blocks(exchange.block_bytes, exchange.block_tokens)
        self._memory = memories.take(self._each * exchange.block_bytes)
        self._placing = deque[tuple[Future[Copied], memoryview]]()

    def receive(self, readinto: Callable[[memoryview], int]) -> None:
        """Receive and place all blocks by what `Stream.readinto` fills. Once. Raises PullFailed; what came stays."""
        try:
            for start in range(0, self._count, self._each):
                blocks, run = min(self._each, self._count - start), self._free_run()
                if run is None:
                    return
                filled = _filled(readinto, run[: blocks * self._block_bytes], self._stopped)
                whole = filled // self._block_bytes
                self._placing.append((self._place(whole, run), run))
                if whole < blocks:
                    raise PullFailed("broken", f"the source broke off after {start + whole} of {self._count} blocks")
        finally:
            ended = self._all_ended()
            self._memory.wipe()
            if ended:  # else something may still read it: no other pull gets it
                self._memories.give(self._memory)

    def _free_run(self) -> memoryview | None:
        """Return memory for the next run; where all is in use, wait for the engine. None: it wants no more."""
        run, placing = None, self._placing
        while placing and (_has_ended(placing[0][0]) or (run := self._memory.take()) is None):
            wanted = _placed(placing[0][0])
            self._memory.give(placing.popleft()[1])
            if not wanted:
                return None
        return run or self._memory.take()

    def _place(self, blocks: int, run: memoryview) -> Future[Copied]:
        return self._engine.exchange(lambda exchange: exchange.place(self._arrival, blocks, run))

    def _all_ended(self) -> bool:
        """Wait for the copies that run. Returns whether they are known to have ended."""
        ended = True
        for placing, _ in self._placing:
            try:
                _placed(placing)
            except Exception:
                ended = False
        return ended


def _has_ended(run: Future[Copied]) -> bool:
    return run.done() and all(ended() for ended in run.result().ended)


def _placed(run: Future[Copied]) -> bool:
    """Wait until a run's memory is free. Returns whether all of it was wanted."""
    copied = run.result(ENGINE_SECONDS)
    wait_for(copied.ended)
    return copied.blocks > 0


def _filled(readinto: Callable[[memoryview], int], out: memoryview, stopped: threading.Event) -> int:
    """Read until `out` is full or the stream ends; return the bytes."""
    filled = 0
    while filled < len(out) and not stopped.is_set():
        try:
            count = readinto(out[filled:])
        except (OSError, HTTPException, ValueError):  # a closed file is a ValueError
            break
        if not count:
            break
        filled += count
    return filled
