"""Products with weights in 8-bit floats against torch. A program: on CUDA, or under the interpreter."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from serving.kernels.scaled import FP8, ScaledWeight, stack
from serving.kernels.triton.quantise import quantise
from serving.kernels.triton.scaled_gemm import scaled_linear
from serving.models.loader import load_weights
from tests.serving.models.fp8_checkpoints import quantised
from tests.serving.models.test_families import build
from tests.serving.runner.family_cases import drivers

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GENERATOR = torch.Generator().manual_seed(7)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE, dtype)


def block_weight(outputs: int, inputs: int, **kinds: bool) -> ScaledWeight:
    rows, columns = -(-outputs // 128), -(-inputs // 128)
    scales = torch.rand(rows, columns, generator=GENERATOR).to(DEVICE) / 50 + 1e-4
    return ScaledWeight((random(outputs, inputs) * 50).to(FP8), scales, 128, 128, **kinds)


def channel_weight(outputs: int, inputs: int, **kinds: bool) -> ScaledWeight:
    scales = torch.rand(outputs, 1, generator=GENERATOR).to(DEVICE) / 50 + 1e-4
    return ScaledWeight((random(outputs, inputs) * 50).to(FP8), scales, 1, inputs, **kinds)


def as_stored(x: torch.Tensor, size: int) -> torch.Tensor:
    """x as its 8 bits and scales say, in float64."""
    data, scales = quantise(x, size)
    return data.double() * scales.T.double().repeat_interleave(size, 1)[:, : x.shape[1]]


def check(x: torch.Tensor, weight: ScaledWeight) -> None:
    found = scaled_linear(x, weight)
    numbers = as_stored(x, weight.columns) if weight.activations else x.double()
    expected = numbers @ weight.dequantised().double().T
    # Sums of float32, one rounding to the result's type; the interpreter truncates it.
    bound = (numbers.abs() @ weight.dequantised().double().abs().T) * 2**-20
    bound += expected.abs() * 2 * torch.finfo(x.dtype).eps
    if DEVICE.type == "cuda":
        bound += numbers.abs() @ weight.dequantised().double().abs().T * 2**-12  # 14 bits within 128 inputs
    assert found.shape == expected.shape and found.dtype == x.dtype
    assert ((found.double() - expected).abs() <= bound).all(), (found.double() - expected).abs().max()


def activations_get_the_nearest_8_bit_float_of_their_own_group() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for inputs, size in ((300, 128), (300, 300), (128, 128)):
            x = random(3, inputs + 8, dtype=dtype)[:, :inputs]
            x[0] *= 1e-3
            x[1, :128] = 0
            data, scales = quantise(x, size)
            assert data.shape == x.shape and scales.shape == (-(-inputs // size), 3)
            each = scales.T.repeat_interleave(size, 1)[:, :inputs]
            expected = torch.where(each > 0, x.float() / each, 0.0)
            assert (data.float().abs() <= 448).all()
            step = torch.maximum(expected.abs() / 16, torch.tensor(2**-10)) * 1.0001
            assert ((data.float() - expected).abs() <= step).all()
            largest = [part.float().abs().amax(1) for part in x.split(size, 1)]
            torch.testing.assert_close(scales, torch.stack(largest) / 448)
    for value in (float("nan"), float("inf")):
        x = random(2, 256)
        x[1, 200] = value
        data, scales = quantise(x, 128)
        whole = data.float() * scales.T.repeat_interleave(128, 1)
        assert whole[1, 128:].isnan().all() and whole[0].isfinite().all() and whole[1, :128].isfinite().all()


def every_scheme_gives_the_product_of_its_numbers() -> None:
    for make in (block_weight, channel_weight):
        check(random(66, 144), make(30, 144))
        for activations in (True, False):
            check(random(3, 272), make(70, 272, activations=activations))
            for dtype, rows in ((torch.bfloat16, 20), (torch.float16, 5)):
                check(random(rows, 136, dtype=dtype)[:, :128], make(60, 128, activations=activations))


def parts_of_other_sizes_than_blocks_keep_their_scales() -> None:
    parts = [block_weight(outputs, 200) for outputs in (192, 64, 70)]
    whole = stack(parts)
    assert whole.rows == 64 and torch.equal(whole.dequantised(), torch.cat([part.dequantised() for part in parts]))
    check(random(4, 200), whole)
    whole = stack([channel_weight(outputs, 200) for outputs in (30, 50)])
    check(random(4, 200), whole)


def a_row_has_the_same_bits_alone_and_among_others() -> None:
    for weight in (block_weight(40, 300), channel_weight(40, 200)):
        x = random(66, weight.data.shape[1], dtype=torch.bfloat16)
        whole = scaled_linear(x, weight)
        for rows in ([0], [65, 60, 7], list(range(40, 60))):
            assert torch.equal(scaled_linear(x[rows], weight), whole[rows])
        x[3, 77] = float("nan")
        spoilt = scaled_linear(x[:6], weight)
        assert spoilt[3].isnan().all()
        assert torch.equal(spoilt[:3], whole[:3]) and torch.equal(spoilt[4:], whole[4:6])


def checkpoints_in_8_bits_run_beside_a_cache_in_8_bits() -> None:
    with tempfile.TemporaryDirectory() as root:
        plain = build("llama")
        for name, parameter in plain.named_parameters():
            if "norm" in name:  # norms far from 1 make the rounding of activations count for more
                parameter.fill_(1.0)
        plain.save_pretrained(Path(root) / "plain")
        for kind, kv_dtype, allowed in (("block", FP8, 0.1), ("channel, weights alone", torch.float32, 1e-4)):
            folder = quantised(Path(root) / "plain", Path(root) / kind, kind)
            ours, truth = drivers(folder, kv_dtype)
            model = ours.runner.model  # type: ignore[attr-defined]
            model.weights = load_weights(folder, model.config, torch.float32, DEVICE, scaled=True)
            vectors = []
            for driver in (ours, truth):
                sequence = driver.start(range(40, 59), embed=True)
                driver.step((sequence, 18))
                answer = driver.step((sequence, 1))[0]
                vectors.append(torch.frombuffer(bytearray(answer.embedding), dtype=torch.float32))
            # Activations in 8 bits: 3 bits after the point in each of 8 products, one behind another.
            assert (vectors[0] - vectors[1]).norm() <= allowed * vectors[1].norm(), (kind, vectors)


CASES = (
    activations_get_the_nearest_8_bit_float_of_their_own_group,
    every_scheme_gives_the_product_of_its_numbers,
    parts_of_other_sizes_than_blocks_keep_their_scales,
    a_row_has_the_same_bits_alone_and_among_others,
    checkpoints_in_8_bits_run_beside_a_cache_in_8_bits,
)

if __name__ == "__main__":
    with torch.inference_mode():
        for case in CASES:
            case()
            print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
