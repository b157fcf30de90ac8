"""10,000 loads and unloads through the real pool and real threads leave nothing behind: no memory, file descriptor,
thread, page, slot or lease. The model is tiny; nothing else is less than in a replica."""

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

CYCLES = 10_000


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# Half a minute alone; beside two busy processes its three threads wait for cores and for each other five times as long.
# The 20 s limit of each wait finds a hang.
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_cycles_leak_nothing() -> None:
    rng = random.Random(4)
    ranks = {digest_of(n): rng.choice([4, 8, 16, 24, 32]) for n in range(1, 200)}
    digests = list(ranks)
    run = Running(Source(ranks), pages=12, slots=8, workers=2, host_bytes=40_000)
    run.source.wiped = _Forgetful()  # type: ignore[assignment]
    before: tuple[int, int, int] | None = None
    cycle = 0
    while run.manager.counters.loads < CYCLES:
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
            run.until(lambda names=names: run.ready(*names), seconds=20)  # type: ignore[misc]
            for name in names:
                run.manager.pin(name)
            for name in names:
                run.manager.unpin(name)
        for ref in refs:
            run.manager.forget(ref)
        run.manager.want([])
        if before is None and run.manager.counters.loads >= CYCLES // 10:
            before = _held()
    after = _held()
    assert before is not None
    assert after[0] <= before[0] and after[1] <= before[1], (before, after)
    assert after[2] - before[2] < 24 << 20, f"{(after[2] - before[2]) >> 10} KiB more after 9,000 further loads"
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
