"""Thousands of loads and unloads through the real pool and real threads leave nothing behind: no memory, no file
descriptor, thread, page, slot or lease. The model is tiny; nothing else is less than in a replica."""

from __future__ import annotations

import gc
import os
import random
import resource
import threading
from pathlib import Path

import pytest

from serving.core import AdapterRef
from tests.serving.adapters.fakes import Running, Source, digest_of


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# Beside busy processes its three threads wait for cores and for each other: the limit of each wait finds a hang alone.
@pytest.mark.parametrize("loads", [1_000, pytest.param(10_000, marks=pytest.mark.deep)])
def test_cycles_of_loads_and_unloads_leak_nothing(loads: int) -> None:
    rng = random.Random(4)
    ranks = {digest_of(n): rng.choice([4, 8, 16, 24, 32]) for n in range(1, 200)}
    digests = list(ranks)
    run = Running(Source(ranks), pages=12, slots=8, workers=2, host_bytes=40_000)
    run.source.wiped = _Forgetful()  # type: ignore[assignment]
    before: tuple[int, int, int] | None = None
    cycle = 0
    while run.manager.counters.loads < loads:
        cycle += 1
        chosen = rng.sample(digests, 4)
        refs = [AdapterRef(d) for d in chosen[:2]] + [AdapterRef.blend([(chosen[2], 0.5), (chosen[3], 0.5)])]
        for ref in refs:
            run.manager.expect(ref)
        names = [str(ref.digest) for ref in refs]
        if cycle % 50 == 0:  # some never come to the end of their load
            run.manager.want(names)
            for dead in run.manager.revoke(chosen[0]):
                assert run.manager.is_revoked(dead)
            run.manager.readmit(chosen[0])
        elif cycle % 31 == 0:
            run.manager.want(names)
            run.manager.poll()
        else:
            run.manager.want(names)
            run.until(lambda names=names: run.ready(*names), seconds=120)  # type: ignore[misc]
            for name in names:
                run.manager.pin(name)
            for name in names:
                run.manager.unpin(name)
        for ref in refs:
            run.manager.forget(ref)
        run.manager.want([])
        if before is None and run.manager.counters.loads >= loads // 5:
            before = _held()
    after = _held()
    assert before is not None
    assert after[0] <= before[0] and after[1] <= before[1], (before, after)
    more = after[2] - before[2]
    # The tensors of one load are 30 KB in the mean.
    assert more < max(4 << 20, 2_400 * loads), f"{more >> 10} KiB more after {loads * 4 // 5} further loads"
    run.close()
    assert run.pool.free_pages == 12 and run.weights_left() == 0 and run.manager.states() == {}
    assert run.source.memory == {} and not run.manager._blends and not run.manager.residents._demand
    assert run.failed == []
    assert not [t for t in threading.enumerate() if t.name.startswith("adapter-load") and t.is_alive()]


class _Forgetful(list[object]):
    def append(self, item: object) -> None:
        """Drop the wiped item: keeping it would look like a leak."""


def _held() -> tuple[int, int, int]:
    gc.collect()
    return open_files(), threading.active_count(), resident_bytes()
