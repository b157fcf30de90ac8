"""The reference against dense weights: everything else is measured by the reference."""

from __future__ import annotations

import torch

from lora_kernels import AdapterPool, BatchMetadata, LoraPair, PoolSpec, SiteSpec, reference
from tests.lora_kernels.factories import activations, dense_delta, make_adapter, mixed_rank_pool, one_site


def test_the_reference_adds_each_rows_own_dense_delta() -> None:
    spec = one_site(64, (48, 33, 16))
    pool, adapters = mixed_rank_pool(spec, torch.float32, "torch", ranks=(1, 12, 40))
    meta = BatchMetadata.build([2, -1, 0, 1, 2], [3, 2, 1, 4, 1], pool)
    y, x = activations(meta, torch.float32)
    expected = y.double()
    for row, slot in enumerate(meta.row_slots.tolist()):
        if slot >= 0:
            expected[row] += dense_delta(spec, adapters[slot], x[row : row + 1])[0]

    reference.lora_apply(y, x, "site", 0, meta)

    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-5)


def test_rank_and_scale_patterns_and_untouched_targets_are_each_targets_own() -> None:
    spec = PoolSpec((SiteSpec("qkv", 40, (24, 8, 8)), SiteSpec("o", 24, (40,))), num_layers=2)
    whole = make_adapter(spec, 24)
    tensors = {
        (0, "qkv", 0): whole[0, "qkv", 0],
        (0, "qkv", 2): LoraPair(whole[0, "qkv", 2].a[:3], whole[0, "qkv", 2].b[:, :3], 0.25),
        (1, "qkv", 1): LoraPair(whole[1, "qkv", 1].a, whole[1, "qkv", 1].b, 0.0),
        (1, "o", 0): LoraPair(whole[1, "o", 0].a[:20], whole[1, "o", 0].b[:, :20], -1.5),
    }
    pool = AdapterPool(spec, 4, 2)
    pool.load(1, tensors)
    meta = BatchMetadata.build([1], [5], pool)
    for index, site in enumerate(spec.sites):
        for layer in range(2):
            x, y = torch.randn(5, site.in_features), torch.zeros(5, site.out_features)
            reference.lora_apply(y, x, site.name, layer, meta)
            expected = dense_delta(spec, tensors, x, site=index, layer=layer)
            torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
