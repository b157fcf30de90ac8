"""Products with weights in 4 and 8 bits against torch. A program: on CUDA, or under the interpreter."""

from __future__ import annotations

import sys

import torch

from serving.kernels.grouped import GroupedWeight
from serving.kernels.triton.grouped_gemm import grouped_linear
from tests.serving.kernels.grouped_weights import KINDS, draw

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GENERATOR = torch.Generator().manual_seed(7)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE, dtype)


def on_device(outputs: int, inputs: int, group: int, kind: str) -> GroupedWeight:
    return draw(outputs, inputs, group, kind).to(DEVICE)


def check(x: torch.Tensor, weight: GroupedWeight) -> None:
    found = grouped_linear(x, weight)
    numbers = weight.dequantised()
    # On a GPU weights have x's type; the interpreter keeps them in float32.
    numbers = numbers.to(x.dtype).double() if DEVICE.type == "cuda" else numbers.double()
    expected = x.double() @ numbers.T
    bound = (x.double().abs() @ numbers.abs().T) * 2**-20 + expected.abs() * 2 * torch.finfo(x.dtype).eps
    assert found.shape == expected.shape and found.dtype == x.dtype
    assert ((found.double() - expected).abs() <= bound).all(), (found.double() - expected).abs().max()


def every_kind_gives_the_product_of_its_numbers() -> None:
    for kind in KINDS:
        check(random(3, 96), on_device(70, 96, 32, kind))
    for group, inputs in ((16, 80), (128, 256), (88, 88)):
        check(random(20, inputs), on_device(66, inputs, group, "4 bits, zeros"))
    check(random(5, 136, dtype=torch.bfloat16)[:, :128], on_device(60, 128, 64, "4 bits, minima"))


def a_row_has_the_same_bits_alone_and_among_others() -> None:
    weight = on_device(40, 96, 32, "4 bits, minima")
    x = random(66, 96, dtype=torch.bfloat16)
    whole = grouped_linear(x, weight)
    for rows in ([0], [65, 60, 7], list(range(40, 60))):
        assert torch.equal(grouped_linear(x[rows], weight), whole[rows])
    x[3, 77] = float("nan")
    spoilt = grouped_linear(x[:6], weight)
    assert spoilt[3].isnan().all() and torch.equal(spoilt[:3], whole[:3]) and torch.equal(spoilt[4:], whole[4:6])


CASES = (every_kind_gives_the_product_of_its_numbers, a_row_has_the_same_bits_alone_and_among_others)

if __name__ == "__main__":
    with torch.inference_mode():
        for case in CASES:
            case()
            print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
