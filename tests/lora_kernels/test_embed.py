"""Adapters on the embedding and on the output head."""

from __future__ import annotations

import pytest
import torch

from lora_kernels import (
    AdapterPool,
    BatchMetadata,
    DtypeError,
    LoraPair,
    PoolSpec,
    ShapeError,
    SiteSpec,
    TargetError,
)
from lora_kernels.training import embed, lora_embed, lora_logits
from tests.lora_kernels.factories import assert_near, make_adapter, mixed_rank_pool, one_site, requests_for, rows_of
from tests.native_caller import needs_compiler

VOCABULARY, WIDTH = 211, 48
RANKS = (1, 8, 16, 24, 64)
VARIANTS = [("torch", torch.float32), ("torch", torch.bfloat16), ("torch", torch.float16)]
VARIANTS += [pytest.param(("c", dtype), marks=needs_compiler) for dtype in (torch.float32, torch.bfloat16, torch.int8)]


@pytest.fixture(params=VARIANTS, ids=lambda variant: f"{variant[0]}-{str(variant[1])[6:]}")
def variant(request: pytest.FixtureRequest) -> tuple[str, torch.dtype]:
    return request.param


@pytest.mark.parametrize("distinct", ["none", "one", "each", "zipf"])
def test_embed_is_apply_to_one_hot_rows(variant, distinct: str) -> None:
    backend, dtype = variant
    pool, _ = mixed_rank_pool(one_site(VOCABULARY, (WIDTH,)), dtype, backend, ranks=RANKS)
    for rows in (0, 1, 17, 129):
        meta = BatchMetadata.build(*requests_for(rows, distinct, len(RANKS)), pool)
        tokens = torch.randint(VOCABULARY, (rows,), dtype=torch.int32 if rows == 17 else torch.int64)
        wide = torch.randn(rows, WIDTH + 5).to(rows_of(dtype))
        y, before = wide[:, 2 : 2 + WIDTH], wide.clone()
        expected = embed.reference(y.clone(), tokens, pool.site("site"), 0, meta)

        assert lora_embed(y, tokens, "site", meta) is y

        assert_near(y, expected, rows_of(dtype))
        base = meta.row_slots == -1
        assert torch.equal(wide[base], before[base])
        assert torch.equal(wide[:, :2], before[:, :2]) and torch.equal(wide[:, 2 + WIDTH :], before[:, 2 + WIDTH :])


def test_an_embedding_adapter_looks_up_its_own_columns() -> None:
    spec = PoolSpec((SiteSpec("embed", 50, (16,), num_layers=1), SiteSpec("o", 16, (16,))), num_layers=2)
    pool = AdapterPool(spec, 4, 3)
    adapter = {(0, "embed", 0): make_adapter(spec, 5)[0, "embed", 0]}
    pool.load(0, adapter)
    pool.load(1, {(1, "o", 0): make_adapter(spec, 20)[1, "o", 0]})
    pool.blend(2, [(1, 0.5), (0, -2.0)])
    meta = BatchMetadata.build([0, 1, 2, -1], [2, 1, 1, 1], pool)
    tokens = torch.tensor([3, 49, 7, 3, 3])
    pair = adapter[0, "embed", 0]
    delta = pair.scale * (pair.b @ pair.a).T
    expected = torch.stack([delta[3], delta[49], torch.zeros(16), -2 * delta[3], torch.zeros(16)])
    torch.testing.assert_close(lora_embed(torch.zeros(5, 16), tokens, "embed", meta), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("error", "tokens", "site"),
    [
        (ShapeError, torch.tensor([0, 1, 211]), "embed"),
        (ShapeError, torch.tensor([0, 1, -1]), "embed"),
        (ShapeError, torch.tensor([0, 1]), "embed"),
        (ShapeError, torch.tensor([[0, 1, 2]]), "embed"),
        (DtypeError, torch.tensor([0.0, 1.0, 2.0]), "embed"),
        (TargetError, torch.tensor([0, 1, 2]), "other"),
        (ShapeError, torch.tensor([0, 1, 2]), "fused"),
    ],
)
def test_wrong_tokens_are_refused_before_y_is_written(error, tokens: torch.Tensor, site: str) -> None:
    spec = PoolSpec((SiteSpec("embed", VOCABULARY, (WIDTH,)), SiteSpec("fused", VOCABULARY, (24, 24))), 1)
    pool = AdapterPool(spec, 1, 1)
    pool.load(0, make_adapter(spec, 4))
    y = torch.randn(3, WIDTH)
    before = y.clone()
    with pytest.raises(error):
        lora_embed(y, tokens, site, BatchMetadata.build([0], [3], pool))
    assert torch.equal(y, before)


def test_logits_are_of_the_rows_picked_from_the_batch(variant) -> None:
    backend, dtype = variant
    spec = PoolSpec((SiteSpec("lm_head", 64, (1003,), num_layers=1),), num_layers=4)
    pool = AdapterPool(spec, 5, 2, dtype, backend=backend)
    adapters = [make_adapter(spec, 16, seed=1), make_adapter(spec, 40, seed=2)]
    for slot, adapter in enumerate(adapters):
        pool.load(slot, adapter)
    batch = BatchMetadata.build([1, -1, 0, 1], [5, 2, 1, 3], pool)
    rows = [10, 4, 6, 7]
    hidden = torch.randn(11, 64).to(rows_of(dtype))
    logits = torch.randn(4, 1003)
    expected = logits.clone()
    for index, (row, slot) in enumerate(zip(rows, [1, 1, -1, 0], strict=True)):
        if slot >= 0:
            pair: LoraPair = adapters[slot][0, "lm_head", 0]
            expected[index] += pair.scale * (hidden[row].float() @ pair.a.T) @ pair.b.T
    before = logits.clone()
    lora_logits(logits, hidden[rows], "lm_head", batch.pick(rows))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 if dtype == torch.float32 else 0.1)
    assert torch.equal(logits[2], before[2])


@pytest.mark.parametrize("rows", [[0, 3], [-1]])
def test_rows_outside_the_batch_cannot_be_picked(rows: list[int]) -> None:
    pool = AdapterPool(one_site(8, (8,)), 1, 1)
    with pytest.raises(ShapeError):
        BatchMetadata.build([-1], [3], pool).pick(rows)
