"""KV in 8-bit floats beside float32, in the torch reference: storage, attention, wiping and size."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from serving.kv.eight_bits import FP8, FP8_MAX, dequantise, quantise
from serving.kv.inputs import PrefillChunk, StepInputs
from serving.kv.paged import PagedKV

CPU = torch.device("cpu")
SHAPE = SimpleNamespace(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16)
BLOCK, BLOCKS = 8, 6


def make(dtype: torch.dtype) -> PagedKV:
    return PagedKV(SHAPE, BLOCKS, BLOCK, dtype, CPU)


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of rows whose magnitudes differ by orders."""
    generator = torch.Generator().manual_seed(seed)
    size = 10.0 ** (torch.arange(count) % 7 - 3)[:, None, None]
    q, k, v = (torch.randn(count, heads, SHAPE.head_dim, generator=generator) for heads in (4, 2, 2))
    return q, k * size, v * size


def prefill(count: int, start: int, blocks: list[int]) -> StepInputs:
    """One chunk of a sequence that holds `blocks`."""
    positions = torch.arange(start, start + count)
    table = torch.tensor(blocks)
    slots = table[positions // BLOCK] * BLOCK + positions % BLOCK
    nothing = torch.empty(0, 0, dtype=torch.int64)
    return StepInputs(positions, positions, slots, 0, nothing, nothing, (PrefillChunk(0, count, start, table),))


def decode(position: int, blocks: list[int]) -> StepInputs:
    at, table = torch.tensor([position]), torch.tensor([blocks])
    mask = (torch.arange(len(blocks) * BLOCK) <= position)[None, None, None]
    return StepInputs(at, at, table[0, at // BLOCK] * BLOCK + at % BLOCK, 1, table, mask, ())


def test_each_key_and_value_is_stored_as_the_nearest_of_its_own_steps() -> None:
    _, k, _ = rows(40, 1)
    k[3, 1] = 0
    data, scales = quantise(k)
    assert data.dtype == FP8 and scales.shape == (40, 2) and scales[3, 1] == 0
    assert torch.equal(data.float().abs().amax(-1)[scales > 0], torch.full((79,), FP8_MAX))
    found = dequantise(data, scales, torch.float32)
    # E4M3 has three bits after the point; below 2^-6 of its range the steps are all 2^-9.
    allowed = torch.maximum(k.abs() / 16, scales[..., None] * 2**-10) * 1.001
    assert ((found - k).abs() <= allowed).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_stay_visible_in_their_own_vector_alone(value: float) -> None:
    _, k, _ = rows(4, 2)
    k[2, 0, 5] = value
    found = dequantise(*quantise(k), torch.float32)
    assert found[2, 0, 5].isnan()
    found[2, 0] = 0
    assert found.isfinite().all()


def test_attention_reads_what_was_stored_in_chunks_and_in_single_tokens() -> None:
    q, k, v = rows(20, 3)
    short, whole = make(FP8), make(torch.float32)
    stored = [dequantise(*quantise(x), torch.float32) for x in (k, v)]
    blocks = [4, 2, 5]
    for start, end in ((0, 9), (9, 19), (19, 20)):
        step = prefill(end - start, start, blocks) if end < 20 else decode(start, blocks)
        part = slice(start, end)
        found = short.attend(1, q[part], k[part], v[part], step)
        expected = whole.attend(1, q[part], stored[0][part], stored[1][part], step)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    keys, values = (x[:20].repeat_interleave(2, 1).transpose(0, 1) for x in stored)
    last = functional.scaled_dot_product_attention(q[19:].transpose(0, 1), keys, values).transpose(0, 1)
    torch.testing.assert_close(found, last, rtol=1e-5, atol=1e-6)
    assert not short.layer(0).keys.view(torch.uint8).any() and not short.scales[0].any()


def test_a_zeroed_block_loses_its_scales_too_and_others_keep_theirs() -> None:
    kv = make(FP8)
    kv.data.view(torch.uint8).fill_(0x38)
    kv.scales.fill_(2.0)
    kv.zero([1, 4])
    for index in range(BLOCKS):
        expected = 0 if index in (1, 4) else 1
        assert (kv.data[:, :, index].float() == expected).all() and (kv.scales[:, :, index] == 2 * expected).all()
    kv.zero([])


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16, torch.float32], ids=str)
def test_a_block_takes_the_bytes_that_it_is_said_to_take(dtype: torch.dtype) -> None:
    kv = make(dtype)
    held = kv.data.nbytes + (0 if kv.scales is None else kv.scales.nbytes)
    assert PagedKV.bytes_per_block(SHAPE, BLOCK, dtype) * BLOCKS == held


def test_a_layer_is_a_view_by_slot() -> None:
    kv = make(FP8)
    layer = kv.layer(1)
    assert layer.keys.shape == layer.values.shape == (BLOCKS * BLOCK, 2, 16)
    layer.value_scales[3 * BLOCK + 2, 1] = 5.0
    layer.keys.view(torch.uint8)[2 * BLOCK + 7, 0, 3] = 1
    assert kv.scales[1, 1, 3, 2, 1] == 5 and kv.data.view(torch.uint8)[1, 0, 2, 7, 0, 3] == 1
    assert make(torch.float32).layer(0).key_scales is None
