"""Loads, blends, evictions and refusals in random order, against a model that knows only dense matrices."""

from __future__ import annotations

import math
import random

import pytest
import torch

from lora_kernels import AdapterPool, BatchMetadata, LoraKernelError, LoraPair, PoolSpec, SiteSpec, lora_apply
from tests.lora_kernels.factories import RANKS
from tests.native_caller import needs_compiler

SPEC = PoolSpec(
    (SiteSpec("qkv", 40, (24, 8, 8)), SiteSpec("down", 33, (40,)), SiteSpec("head", 40, (50,), num_layers=1)),
    num_layers=2,
)
TARGETS = [
    (layer, site.name, index)
    for site in SPEC.sites
    for layer in range(SPEC.layers_of(site))
    for index in range(len(site.slices))
]
Dense = dict[tuple[int, str], torch.Tensor]


def random_adapter(rng: random.Random) -> dict[tuple[int, str, int], LoraPair]:
    """Some targets, each with a rank of its own; scales as alpha/r, as rsLoRA's alpha/sqrt(r), or of any pattern."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    sites = {site.name: site for site in SPEC.sites}
    common, kind = rng.choice(RANKS), rng.choice(["plain", "rslora", "pattern"])
    tensors = {}
    for target in rng.sample(TARGETS, rng.randint(0, len(TARGETS))):
        site = sites[target[1]]
        rank = common if kind != "pattern" or rng.random() < 0.5 else rng.choice(RANKS)
        alpha = 16 if kind != "pattern" or rng.random() < 0.5 else rng.choice([0, 1, 64])
        tensors[target] = LoraPair(
            torch.randn(rank, site.in_features, generator=generator) / site.in_features**0.5,
            torch.randn(site.slices[target[2]], rank, generator=generator) / rank,
            alpha / math.sqrt(rank) if kind == "rslora" else alpha / rank,
        )
    return tensors


def dense(tensors: dict[tuple[int, str, int], LoraPair]) -> Dense:
    """ΔW of every layer and site, float64 [N, K]."""
    whole = {}
    for site in SPEC.sites:
        for layer in range(SPEC.layers_of(site)):
            slices = [torch.zeros(width, site.in_features, dtype=torch.float64) for width in site.slices]
            for index in range(len(slices)):
                if (pair := tensors.get((layer, site.name, index))) is not None:
                    slices[index] = pair.scale * pair.b.double() @ pair.a.double()
            whole[layer, site.name] = torch.cat(slices)
    return whole


def weighted(parts: list[tuple[Dense, float]]) -> Dense:
    total = dense({})
    return {key: zero + sum(weight * part[key] for part, weight in parts) for key, zero in total.items()}


def check(pool: AdapterPool, slots: dict[int, Dense], rng: random.Random) -> None:
    """Every site and layer for a batch of all slots and the base; free pages are zero, and none is lost."""
    listed = {page for slot in slots for page in pool.slot_pages(slot)}
    assert pool.free_pages == pool.num_pages - len(listed)
    free = [page for page in range(pool.num_pages + 1) if page not in listed]
    order = [*slots, -1]
    rng.shuffle(order)
    meta = BatchMetadata.build(order, [1] * len(order), pool)
    for site in SPEC.sites:
        storage = pool.site(site.name)
        assert not any(storage.a[:, page].any() or storage.b[:, page].any() for page in free)
        for layer in range(SPEC.layers_of(site)):
            x, y = torch.randn(len(order), site.in_features), torch.zeros(len(order), site.out_features)
            lora_apply(y, x, site.name, layer, meta)
            for row, slot in enumerate(order):
                delta = slots[slot][layer, site.name] @ x[row].double() if slot >= 0 else torch.zeros(1).double()
                torch.testing.assert_close(y[row].double(), delta.expand(len(y[row])), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("backend", [pytest.param("c", marks=needs_compiler), "torch"])
def test_whatever_the_order_each_slot_is_its_dense_sum_and_free_pages_are_zero(backend: str, seed: int) -> None:
    rng = random.Random(seed)
    pool = AdapterPool(SPEC, 40, 6, backend=backend)
    slots: dict[int, Dense] = {}
    refused = 0
    for step in range(80):
        slot = rng.randrange(pool.num_slots)
        action = rng.choice(["load", "load", "blend", "load_blend", "evict", "cancel"])
        adapters = [random_adapter(rng) for _ in range(2)]
        weights = [rng.uniform(-1, 1) for _ in range(2)]
        loaded = [rng.choice(list(slots)) for _ in range(2)] if slots else []
        try:
            if action == "load":
                pool.load(slot, adapters[0])
                slots[slot] = dense(adapters[0])
            elif action == "load_blend":
                pool.load_blend(slot, list(zip(adapters, weights, strict=True)))
                slots[slot] = weighted([(dense(t), w) for t, w in zip(adapters, weights, strict=True)])
            elif action == "blend":
                pool.blend(slot, list(zip(loaded, weights, strict=False)))
                slots[slot] = weighted([(slots[part], w) for part, w in zip(loaded, weights, strict=False)])
            elif action == "evict":
                pool.evict(slot)
                del slots[slot]
            else:
                reservation = pool.reserve(pool.pages_needed(adapters[0]))
                reservation.write(adapters[0])
                pool.cancel(reservation)
        except LoraKernelError:
            refused += 1
        assert {s for s in range(pool.num_slots) if pool.is_loaded(s)} == set(slots)
        if step % 4 == 3:
            check(pool, slots, rng)
    assert 0 < refused < 70
