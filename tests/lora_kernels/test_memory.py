"""Memory of free pages goes back to the system, and comes back zeroed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from lora_kernels import AdapterPool, BatchMetadata, PoolSpec, SiteSpec, lora_apply
from tests.lora_kernels.factories import make_adapter

SPEC = PoolSpec((SiteSpec("qkv", 2048, (2048, 512, 512)), SiteSpec("o", 2048, (2048,))), num_layers=2, max_rank=64)
PAGES = 24

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def applied(pool: AdapterPool, slot: int) -> torch.Tensor:
    x = torch.linspace(-1, 1, 2048).repeat(3, 1)
    return lora_apply(torch.zeros(3, 3072), x, "qkv", 1, BatchMetadata.build([slot], [3], pool))


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("backend", ["c", "torch"])
def test_free_pages_go_back_to_the_system_and_loaded_ones_stay(backend: str, private: bool) -> None:
    pool = AdapterPool(SPEC, PAGES, PAGES, torch.float32, backend=backend, private=private)
    for slot in range(PAGES):
        pool.load(slot, make_adapter(SPEC, 16, seed=slot))
    page = sum(t[:, 0].nbytes for name in ("qkv", "o") for t in (pool.site(name).a, pool.site(name).b))
    kept = {slot: applied(pool, slot) for slot in range(0, PAGES, 3)}
    for slot in range(PAGES):
        if slot not in kept:
            pool.evict(slot)
    full = resident()
    pool.give_back()
    freed = full - resident()
    assert freed > 0.8 * page * (PAGES - len(kept)), f"{freed >> 20} MiB of {page * (PAGES - len(kept)) >> 20}"
    for slot, before in kept.items():
        assert torch.equal(applied(pool, slot), before)
    for slot in (1, 2):
        pool.load(slot, make_adapter(SPEC, 9, seed=slot + 100))  # ranks 9 to 15 of its page are to be zero
        fresh = AdapterPool(SPEC, 1, 1, torch.float32, backend=backend)
        fresh.load(0, make_adapter(SPEC, 9, seed=slot + 100))
        assert torch.equal(applied(pool, slot), applied(fresh, 0))


def test_a_pool_with_nothing_free_gives_nothing_back() -> None:
    pool = AdapterPool(SPEC, 1, 1, torch.float32)
    pool.load(0, make_adapter(SPEC, 16))
    before = applied(pool, 0)
    pool.give_back()
    assert torch.equal(applied(pool, 0), before)
