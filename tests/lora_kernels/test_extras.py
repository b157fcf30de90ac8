"""Extras in a pool: reserved with the pages, published with them, given back zeroed; applied to their rows alone."""

from __future__ import annotations

import pytest
import torch

from lora_kernels import (
    AdapterPool,
    BatchMetadata,
    ExtrasError,
    LoraPair,
    PoolFullError,
    PoolSpec,
    SiteSpec,
    lora_apply,
    lora_write,
)
from lora_kernels.extras import Extras, Factors, RowExtras, TokenRows

SPEC = PoolSpec((SiteSpec("o", 8, (6,)),), num_layers=1)
PAIR = LoraPair(torch.ones(2, 8), torch.ones(6, 2), 0.5)


def pool_with_extras() -> tuple[AdapterPool, torch.Tensor]:
    """Slot 0 is plain; slot 1 has a scale of 2 and a bias of 3."""
    pool = AdapterPool(SPEC, 4, 3, extra_bytes=64)
    pool.load(0, {(0, "o", 0): PAIR})
    reservation = pool.reserve(1, 48)
    reservation.write({(0, "o", 0): PAIR})
    memory = reservation.extra_memory
    assert memory is not None
    memory[:6], memory[6:] = 2.0, 3.0
    reservation.extras = Extras(memory, scales={(0, "o"): memory[:6]}, biases={(0, "o"): memory[6:]})
    pool.publish(1, reservation)
    return pool, memory


def test_rows_of_others_keep_their_bits() -> None:
    pool, _ = pool_with_extras()
    meta = BatchMetadata.build([1, 0, -1, 1], [2, 1, 1, 1], pool)
    x = torch.linspace(-1, 1, 40).view(5, 8)
    wide = torch.linspace(0, 1, 60).view(5, 12)
    y = wide[:, 3:9]  # a column range
    plain = lora_apply(y.clone(), x, "o", 0, BatchMetadata.build([0, 0, -1, 0], [2, 1, 1, 1], pool))
    lora_apply(y, x, "o", 0, meta)
    assert torch.equal(y[[2, 3]], plain[[2, 3]])
    torch.testing.assert_close(y[[0, 1, 4]], plain[[0, 1, 4]] * 2 + 3)
    with pytest.raises(ExtrasError, match="use lora_apply"):
        lora_write(y.clone(), x, "o", 0, meta)


def test_memory_goes_back_zeroed_from_a_slot_and_from_a_reservation() -> None:
    pool, memory = pool_with_extras()
    assert pool.extras.used == 48 and pool.has_extras
    with pytest.raises(PoolFullError, match="extras need 48 bytes, 16 of 64"):
        pool.reserve(1, 48)
    assert pool.free_pages == 2
    pool.evict(1)
    assert pool.extras.used == 0 and not memory.any() and not pool.has_extras
    with pytest.raises(PoolFullError):
        pool.reserve(4, 48)
    assert pool.extras.used == 0
    reservation = pool.reserve(1, 48)
    held = reservation.extra_memory
    assert held is not None
    held[:] = 1.0
    pool.cancel(reservation)
    assert pool.extras.used == 0 and not held.any()


def test_a_slot_with_extras_is_in_no_blend() -> None:
    pool, _ = pool_with_extras()
    with pytest.raises(ExtrasError, match="cannot be blended"):
        pool.blend(2, [(0, 0.5), (1, 0.5)])
    assert not pool.is_loaded(2)


def test_embedding_and_head_of_picked_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    table, rows = torch.randn(10, 8, generator=generator), torch.randn(2, 8, generator=generator)
    down, up = torch.randn(3, 8, generator=generator), torch.randn(3, 10, generator=generator)
    tokens = TokenRows(torch.tensor([2, 7], dtype=torch.int32), rows)
    extras = Extras(torch.empty(0), head=Factors(down, up), embed_tokens=tokens, head_tokens=tokens)
    of_all = RowExtras.of_all(extras)
    assert of_all is not None
    ids = torch.tensor([7, 1, 2])
    hidden = table[ids]
    of_all.embed(hidden, ids)
    assert torch.equal(hidden, torch.stack([rows[1], table[1], rows[0]]))
    final = torch.randn(3, 8, generator=generator)
    logits = final @ table.T
    expected = logits + final @ down.T @ up
    expected[:, [2, 7]] = final @ rows.T
    expected[1] = logits[1]
    of_all.picked(torch.tensor([-1, 0, -1])).logits(logits, final)
    torch.testing.assert_close(logits, expected)
