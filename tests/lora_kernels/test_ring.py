"""Pinned memory for all loads: regions never overlap, are freed in order, and a load waits for room for so long."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lora_kernels import StagingError
from lora_kernels.loading.ring import PinnedRing, Region
from tests.lora_kernels.fake_cuda import FakeCuda

SIZE = 1_000


def ring_of(size: int = SIZE) -> PinnedRing:
    return PinnedRing(torch.zeros(size, dtype=torch.uint8))


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, SIZE), st.integers(0, 3)), max_size=30))
def test_regions_in_use_never_share_a_byte_and_all_comes_back(steps: list[tuple[int, int]]) -> None:
    ring = ring_of()
    held: list[Region] = []
    for nbytes, gives in steps:
        for _ in range(min(gives, len(held))):
            ring.give(held.pop(len(held) // 2))
        try:
            held.append(ring.take(nbytes, seconds=0))
        except StagingError:
            assert held, "an empty ring has room for everything"
        used = sorted((region.begin, region.end) for region in held)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(used))
        assert all(begin >= 0 and end <= SIZE for begin, end in used)
    for region in held:
        ring.give(region)
    assert ring.take(SIZE, seconds=0).begin == 0


def test_a_load_larger_than_the_ring_is_refused_at_once() -> None:
    with pytest.raises(StagingError, match="1001 bytes do not fit"):
        ring_of().take(SIZE + 1, seconds=60)


def test_a_region_is_used_again_only_when_the_device_is_done_with_it() -> None:
    cuda, ring = FakeCuda(), ring_of()
    with cuda.held(cuda.default):
        ring.give(ring.take(SIZE, seconds=0), after=cuda.record())
        with pytest.raises(StagingError, match="no room"):
            ring.take(1, seconds=0.01)
    assert ring.take(SIZE, seconds=0).begin == 0


def test_a_load_waits_for_another_threads_region_and_small_ones_do_not_overtake_a_large_one() -> None:
    ring = ring_of()
    first = ring.take(600, seconds=0)
    taken: list[int] = []
    large = threading.Thread(target=lambda: taken.append(len(ring.take(900, seconds=60).memory)), daemon=True)
    large.start()
    while not ring._turn.locked():
        time.sleep(0.001)
    with pytest.raises(StagingError):
        ring.take(10, seconds=0.01)
    ring.give(first)
    large.join(60)
    assert taken == [900]
