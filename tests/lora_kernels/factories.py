"""Adapters, pools and batches for the kernel tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lora_kernels import AdapterPool, AdapterTensors, BatchMetadata, LoraPair, PoolSpec, SiteSpec

RANKS = (1, 4, 8, 12, 16, 24, 40, 64, 128, 256)


def one_site(k: int, slices: Sequence[int], *, layers: int = 1, page_size: int = 16, max_rank: int = 256) -> PoolSpec:
    return PoolSpec((SiteSpec("site", k, tuple(slices)),), layers, page_size, max_rank)


def make_adapter(
    spec: PoolSpec, rank: int, *, seed: int = 0, scale: float = 2.0
) -> dict[tuple[int, str, int], LoraPair]:
    """Weights on every target, sized so that a row of ΔW x is about 1."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    return {
        (layer, site.name, index): LoraPair(
            torch.randn(rank, site.in_features, generator=generator) / site.in_features**0.5,
            torch.randn(width, rank, generator=generator) / rank**0.5,
            scale,
        )
        for site in spec.sites
        for layer in range(spec.layers_of(site))
        for index, width in enumerate(site.slices)
    }


def dense_delta(
    spec: PoolSpec, tensors: AdapterTensors, x: torch.Tensor, *, site: int = 0, layer: int = 0
) -> torch.Tensor:
    """ΔW x from the adapter's own tensors in float64: knows nothing of pages."""
    target = spec.sites[site]
    parts = []
    for index, width in enumerate(target.slices):
        pair = tensors.get((layer, target.name, index))
        if pair is None:
            parts.append(torch.zeros(len(x), width, dtype=torch.float64))
        else:
            parts.append(pair.scale * (x.double() @ pair.a.double().T) @ pair.b.double().T)
    return torch.cat(parts, dim=1)


def poison_spare_pages(pool: AdapterPool) -> None:
    """Put NaN into every page that no slot lists (into the scales of 8-bit ones), so that any read of one shows."""
    listed = {page for slot in range(pool.num_slots) if pool.is_loaded(slot) for page in pool.slot_pages(slot)}
    spare = [page for page in range(pool.num_pages) if page not in listed]
    for site in pool.spec.sites:
        storage = pool.site(site.name)
        whole = storage.rank_scales is not None and pool.dtype == torch.int8
        for page in spare:
            storage.a[:, page] = 127 if whole else torch.nan
            storage.b[:, page] = 127 if whole else torch.nan
            if storage.rank_scales is not None:
                storage.rank_scales[:, page] = torch.nan


def snapshot(pool: AdapterPool) -> tuple[object, ...]:
    """Everything a pool holds: free pages, loaded slots, every tensor."""
    tensors = [pool.page_table, pool.page_scales, pool.page_ranks]
    for site in pool.spec.sites:
        storage = pool.site(site.name)
        tensors += [storage.a, storage.b, storage.live, torch.tensor(storage.live_host)]
        tensors += [] if storage.rank_scales is None else [storage.rank_scales]
    slots = tuple(pool.is_loaded(slot) for slot in range(pool.num_slots))
    return pool.free_pages, slots, [tensor.clone() for tensor in tensors]


def assert_unchanged(pool: AdapterPool, before: tuple[object, ...]) -> None:
    """Every bit of the pool is what `snapshot` saw."""
    after = snapshot(pool)
    assert after[:2] == before[:2]
    for new, old in zip(after[2], before[2], strict=True):  # type: ignore[call-overload]
        assert torch.equal(new.view(torch.uint8), old.view(torch.uint8))


def mixed_rank_pool(
    spec: PoolSpec, dtype: torch.dtype, backend: str, ranks: Sequence[int] = RANKS
) -> tuple[AdapterPool, list[AdapterTensors]]:
    """One slot per rank, on pages that are not adjacent for every third slot; spare pages poisoned."""
    pages = sum(-(-rank // spec.page_size) for rank in ranks)
    pool = AdapterPool(spec, pages + len(ranks) + 3, len(ranks) + 1, dtype, backend=backend)
    adapters: list[AdapterTensors] = []
    filler = {next(iter(make_adapter(spec, 1))): next(iter(make_adapter(spec, 1).values()))}
    for slot, rank in enumerate(ranks):
        if slot % 3 == 2:
            pool.load(len(ranks), filler)
        adapters.append(make_adapter(spec, rank, seed=slot))
        pool.load(slot, adapters[-1])
        if slot % 3 == 2:
            pool.evict(len(ranks))
    poison_spare_pages(pool)
    return pool, adapters


def requests_for(rows: int, distinct: str, slots: int) -> tuple[list[int], list[int]]:
    """Slots and lengths of a batch: "none", "one", "each" (every row another slot), or "zipf" (base mixed in)."""
    if distinct == "none":
        return [-1], [rows]
    if distinct == "one":
        return [slots - 1], [rows]
    generator = torch.Generator().manual_seed(rows)
    if distinct == "each":
        order = torch.randperm(slots, generator=generator).tolist()
        return [order[row % slots] for row in range(rows)], [1] * rows
    weights = 1 / torch.arange(1, slots + 2, dtype=torch.float64)
    drawn: list[int] = []
    lengths: list[int] = []
    while sum(lengths) < rows:
        drawn.append(int(torch.multinomial(weights, 1, generator=generator)) - 1)
        lengths.append(min(int(torch.randint(1, 9, (1,), generator=generator)), rows - sum(lengths)))
    return drawn, lengths


def rows_of(dtype: torch.dtype) -> torch.dtype:
    """The type of activations beside pages of such a type."""
    return torch.bfloat16 if dtype == torch.int8 else dtype


def activations(meta: BatchMetadata, dtype: torch.dtype, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """y and x for the first site, y as a column range of a wider tensor whose surroundings are NaN."""
    site = meta.pool.spec.sites[0]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(meta.rows, site.in_features, generator=generator).to(dtype)
    wide = torch.full((meta.rows, site.out_features + 7), torch.nan, dtype=dtype)
    y = wide[:, 3 : 3 + site.out_features]
    y.copy_(torch.randn(meta.rows, site.out_features, generator=generator))
    return y, x


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal up to the order of float32 sums, or to a few roundings of values below 10 to a shorter `dtype`."""
    atol = {torch.float32: 3e-5, torch.bfloat16: 0.125, torch.float16: 0.02}[dtype]
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
