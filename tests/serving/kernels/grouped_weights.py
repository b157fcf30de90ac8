"""Random weights in 4 and 8 bits, and their numbers by a formula of their own."""

from __future__ import annotations

import torch

from serving.kernels.grouped import GroupedWeight

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
# kind → bits, what stands beside the scale, type of both
KINDS: dict[str, tuple[int, str, torch.dtype]] = {
    "4 bits": (4, "", HALF),
    "4 bits, minima": (4, "minima", HALF),
    "4 bits, zeros": (4, "zeros", BRAIN),
    "8 bits": (8, "", SINGLE),
    "8 bits, minima": (8, "minima", SINGLE),
    "8 bits, zeros": (8, "zeros", HALF),
}


def draw(outputs: int, inputs: int, group: int, kind: str, seed: int = 0) -> GroupedWeight:
    bits, beside, dtype = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    places = (outputs, -(-inputs // group))
    # Every scale is a float16 number: its product with a code is exact, as in the checkpoints that have minima.
    scales = (torch.rand(*places, generator=generator) / 100 + 1e-3).half().to(dtype)
    offsets = {}
    if beside == "zeros":
        offsets["zeros"] = torch.randint(0, 17, places, generator=generator).to(dtype)
    if beside == "minima":
        offsets["minima"] = (torch.randn(*places, generator=generator) / 20).half().to(dtype)
    if bits == 8:
        codes = torch.randint(-128, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    else:
        codes = torch.randint(0, 256, (outputs, inputs // 2), generator=generator, dtype=torch.uint8)
    return GroupedWeight(codes, scales, group, **offsets)


def numbers(weight: GroupedWeight) -> torch.Tensor:
    """The weight in float64, by gathering: exact."""
    k = torch.arange(weight.shape[1])
    codes = weight.codes.double()
    if weight.four_bits:
        bytes_ = weight.codes.int()
        codes = torch.where(k % 2 == 0, bytes_[:, k // 2] & 15, bytes_[:, k // 2] >> 4).double()
        if weight.minima is None and weight.zeros is None:
            codes -= 8
    groups = k // weight.group
    zeros = 0 if weight.zeros is None else weight.zeros[:, groups].double()
    minima = 0 if weight.minima is None else weight.minima[:, groups].double()
    return (codes - zeros) * weight.scales[:, groups].double() + minima
