"""The Triton kernels of the forward pass against plain torch. A program: on CUDA, or under the interpreter."""

from __future__ import annotations

import sys
from unittest.mock import patch

import torch
from torch.nn import functional

from lora_kernels import AdapterPool, BatchMetadata, LoraPair, PoolSpec, SiteSpec
from serving.kernels.triton.activation import silu_mul
from serving.kernels.triton.attention_work import AttentionWork
from serving.kernels.triton.norm import add_rms_norm
from serving.kernels.triton.rope import rope_and_store
from serving.kv.paged import KVLayer
from serving.models import llama_gpu
from serving.sampling.device import sampler_bytes
from serving.sizing import Steps, step_bytes
from tests.serving.kernels import attention_cases, family_cases
from tests.serving.shapes import LLAMA_3_8B

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=_random.generator).to(DEVICE, dtype)  # type: ignore[attr-defined]


_random.generator = torch.Generator().manual_seed(5)  # type: ignore[attr-defined]


def _close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    # The interpreter truncates where hardware rounds: two units in the last place.
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def norm_adds_the_residual_and_normalises_in_float32() -> None:
    for dtype in DTYPES:
        for rows, hidden in ((1, 64), (5, 576), (3, 4096)):
            residual, delta = _random(rows, hidden, dtype=dtype), _random(rows, hidden, dtype=dtype)
            weight, out = _random(hidden, dtype=dtype), torch.empty(rows, hidden, device=DEVICE, dtype=dtype)
            before = residual.clone()
            add_rms_norm(residual, None, weight, 1e-5, out)
            assert torch.equal(residual, before)
            _close(out, functional.rms_norm(before.float(), (hidden,), weight.float(), 1e-5), dtype)
            add_rms_norm(residual, delta, weight, 1e-5, out)
            total = before.float() + delta.float()
            _close(residual, total, dtype)
            _close(out, functional.rms_norm(total, (hidden,), weight.float(), 1e-5), dtype)


def silu_mul_takes_gate_and_up_from_one_product() -> None:
    for dtype in DTYPES:
        for width in (64, 1536, 1100):
            both = _random(3, 2 * width, dtype=dtype)
            found = silu_mul(both, torch.empty(3, width, device=DEVICE, dtype=dtype))
            gate, up = both.float().chunk(2, -1)
            _close(found, functional.silu(gate) * up, dtype)


def rope_rotates_queries_and_fills_the_cache_and_nothing_else() -> None:
    for dtype in DTYPES:
        for heads, kv_heads, dim in ((9, 3, 64), (4, 4, 128), (8, 2, 16)):
            rows, places = 4, 40
            wide = (heads + 2 * kv_heads) * dim
            padded = _random(rows, wide + 8, dtype=dtype)
            qkv = padded[:, :wide]
            before = padded.clone()
            keys = _random(places, kv_heads, dim, dtype=dtype)
            values = _random(places, kv_heads, dim, dtype=dtype)
            old_keys, old_values = keys.clone(), values.clone()
            angle = torch.rand(64, dim // 2, generator=_random.generator) * 6  # type: ignore[attr-defined]
            table = torch.stack((angle.cos(), angle.sin()), 1).to(DEVICE)
            positions = torch.tensor([0, 7, 63, 7], dtype=torch.int32, device=DEVICE)
            slots = torch.tensor([3, 39, 0, 17], dtype=torch.int32, device=DEVICE)
            rope_and_store(qkv, positions, slots, table, KVLayer(keys, values), heads)
            assert torch.equal(padded[:, wide:], before[:, wide:])
            assert torch.equal(qkv[:, heads * dim :], before[:, heads * dim : wide])
            cos, sin = table[positions.long()].unbind(1)
            x = before[:, : (heads + kv_heads) * dim].float().view(rows, -1, dim)
            one, two = x.chunk(2, -1)
            rotated = torch.cat((one * cos[:, None] - two * sin[:, None], two * cos[:, None] + one * sin[:, None]), -1)
            _close(qkv[:, : heads * dim].reshape(rows, heads, dim), rotated[:, :heads], dtype)
            _close(keys[slots.long()], rotated[:, heads:], dtype)
            assert torch.equal(
                values[slots.long()], before[:, (heads + kv_heads) * dim : wide].view(rows, kv_heads, dim)
            )
            others = torch.ones(places, dtype=torch.bool)
            others[slots.long().cpu()] = False
            assert torch.equal(keys[others], old_keys[others]) and torch.equal(values[others], old_values[others])


def bias_and_norms_come_before_the_rotation_and_values_are_not_normed() -> None:
    heads, kv_heads, dim, rows = 5, 2, 80, 3
    for dtype in (torch.float32, torch.bfloat16):
        wide = (heads + 2 * kv_heads) * dim
        qkv, bias = _random(rows, wide, dtype=dtype), _random(wide, dtype=dtype)
        q_norm, k_norm = _random(dim, dtype=dtype), _random(dim, dtype=dtype)
        angle = torch.rand(8, dim // 2, generator=_random.generator) * 6  # type: ignore[attr-defined]
        table = torch.stack((angle.cos(), angle.sin()), 1).to(DEVICE)
        positions, slots = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([0, 3, 7], [5, 2, 0]))
        for norms in (False, True):
            kv = KVLayer(*(torch.zeros(6, kv_heads, dim, device=DEVICE, dtype=dtype) for _ in range(2)))
            x = (qkv.float() + bias.float()).view(rows, -1, dim)
            found, given = qkv.clone(), {"q_norm": q_norm, "k_norm": k_norm} if norms else {}
            rope_and_store(found, positions, slots, table, kv, heads, bias=bias, eps=1e-6, **given)
            values, x = x[:, heads + kv_heads :], x[:, : heads + kv_heads]
            if norms:
                weights = torch.stack([q_norm] * heads + [k_norm] * kv_heads).float()
                x = functional.rms_norm(x, (dim,), None, 1e-6) * weights
            cos, sin = (part[:, None] for part in table[positions.long()].unbind(1))
            one, two = x.chunk(2, -1)
            rotated = torch.cat((one * cos - two * sin, two * cos + one * sin), -1)
            _close(found.view(rows, -1, dim)[:, :heads], rotated[:, :heads], dtype)
            _close(kv.keys[slots.long()], rotated[:, heads:], dtype)
            _close(kv.values[slots.long()], values, dtype)


def eight_bit_heads_are_the_nearest_numbers_of_their_scale() -> None:
    heads, kv_heads, dim, rows = 3, 2, 64, 4
    wide = (heads + 2 * kv_heads) * dim
    qkv = _random(rows, wide, dtype=torch.bfloat16)
    qkv[1, -dim:] = 0
    before = qkv.float()
    angle = torch.rand(8, dim // 2, generator=_random.generator) * 6  # type: ignore[attr-defined]
    table = torch.stack((angle.cos(), angle.sin()), 1).to(DEVICE)
    positions, slots = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([0, 3, 7, 1], [5, 2, 0, 4]))
    kv = KVLayer(
        torch.zeros(6, kv_heads, dim, device=DEVICE, dtype=torch.float8_e4m3fn),
        torch.zeros(6, kv_heads, dim, device=DEVICE, dtype=torch.float8_e4m3fn),
        torch.full((6, kv_heads), 9.0, device=DEVICE),
        torch.full((6, kv_heads), 9.0, device=DEVICE),
    )
    rope_and_store(qkv, positions, slots, table, kv, heads)
    cos, sin = (x[:, None] for x in table[positions.long()].unbind(1))
    one, two = before[:, heads * dim : (heads + kv_heads) * dim].view(rows, kv_heads, dim).chunk(2, -1)
    exact = torch.cat((one * cos - two * sin, two * cos + one * sin), -1)
    values = before[:, (heads + kv_heads) * dim :].view(rows, kv_heads, dim)
    for data, scales, expected in ((kv.keys, kv.key_scales, exact), (kv.values, kv.value_scales, values)):
        assert scales is not None and bool((scales[[1, 3]] == 9).all()) and bool((data[[1, 3]].float() == 0).all())
        torch.testing.assert_close(scales[slots.long()], expected.abs().amax(-1) / 448, rtol=1e-6, atol=0)
        scaled = expected / scales[slots.long()][..., None].clamp(min=1e-30)
        found = data[slots.long()].float()
        # Half a unit in the last of three binary places; products with the inverse scale are rounded once more.
        assert bool(((found - scaled).abs() <= scaled.abs().clamp(min=2**-6) / 16 * 1.001).all())
        nearest = scaled.to(torch.float8_e4m3fn).float()
        assert float((found != nearest).float().mean()) < 0.01


def long_prompts_take_the_part_of_the_adapter_first_and_the_base_product_onto_it() -> None:
    spec = PoolSpec((SiteSpec("o", 64, (48,)),), num_layers=1)
    pool = AdapterPool(spec, 2, 1, torch.float32, DEVICE, backend="triton")
    pool.load(0, {(0, "o", 0): LoraPair(_random(8, 64), _random(48, 8), 0.5)})
    batch = BatchMetadata.build([0, -1], [5, 3], pool)
    x, weight = _random(8, 64), _random(48, 64)
    found = []
    for first_write_rows in (9, 8):
        with patch.object(llama_gpu, "FIRST_WRITE_ROWS", first_write_rows):
            found.append(llama_gpu._linear(x, weight, "o", 0, batch))
    _close(found[1], found[0], torch.bfloat16)
    torch.testing.assert_close(found[1][5:], functional.linear(x[5:], weight))


def the_plan_of_a_card_counts_the_scratch_of_attention_and_of_sampling() -> None:
    model, samples, length = LLAMA_3_8B, 256, 131_072
    planned = step_bytes(model, Steps(rows=2_048, samples=samples, max_len=length, graphs=1), 2, 256)
    assert AttentionWork.bytes(samples, model.num_heads, model.head_dim, length) <= planned["attention"]
    logits = samples * model.vocab_size * 2
    assert sampler_bytes(model.vocab_size, samples) + logits <= planned["logits and sampling"]


CASES = (
    the_plan_of_a_card_counts_the_scratch_of_attention_and_of_sampling,
    long_prompts_take_the_part_of_the_adapter_first_and_the_base_product_onto_it,
    norm_adds_the_residual_and_normalises_in_float32,
    silu_mul_takes_gate_and_up_from_one_product,
    rope_rotates_queries_and_fills_the_cache_and_nothing_else,
    bias_and_norms_come_before_the_rotation_and_values_are_not_normed,
    eight_bit_heads_are_the_nearest_numbers_of_their_scale,
    *attention_cases.CASES,
    *family_cases.CASES,
)

if __name__ == "__main__":
    for case in CASES:
        case()
        print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
