"""Tables of operations at the ends of what floats can be; what lies between is `sk_ops_agree`'s."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator

import pytest
import torch

from serving.kernels.library import INSTRUCTION_SETS, KernelLibrary, load_library

FLOAT32 = 0
Activation = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
Quantiser = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Operations(ctypes.Structure):
    """The beginning of sk_ops."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("rounds", ctypes.c_int),
        ("rms_norm", ctypes.c_void_p),
        ("silu_mul", Activation),
        ("rotate", ctypes.c_void_p),
        ("widen", ctypes.c_void_p),
        ("quantise", Quantiser),
    )


@pytest.fixture
def library() -> Iterator[KernelLibrary]:
    found = load_library()
    assert found is not None
    before = found.instruction_set
    yield found
    found.use(before)


def test_silu_is_right_wherever_its_exponential_ends(library: KernelLibrary) -> None:
    ends = [87.2, 87.4, 88.2, 88.4, 88.7, 88.8, 89.5, 103.9, 104.1, 106, 1e4, 1e9, 1e12, 1e20, 1e30, 3e38, math.inf]
    gate = torch.tensor([0.0, -0.0, *ends, *(-end for end in ends), math.nan, *torch.linspace(-87, 87, 4001)])
    up = torch.full_like(gate, 0.5)
    exact = gate.double() / (1 + torch.exp(-gate.double())) * 0.5
    names = [name for name in INSTRUCTION_SETS if library.use(name)]
    assert "portable" in names
    for name in names:
        operations = Operations.in_dll(library.handle, f"sk_ops_{name}")
        assert operations.name == name.encode()
        found = torch.empty_like(gate)
        operations.silu_mul(gate.data_ptr(), up.data_ptr(), gate.numel(), found.data_ptr(), FLOAT32)
        # -inf / inf is no number. Some instruction sets make 0 of what others make quotients of the smallest floats.
        torch.testing.assert_close(
            found.double(), exact, rtol=2e-6, atol=1e-36, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("size", [1, 21, 64])
def test_8_bits_have_a_step_that_fits_their_largest_value(library: KernelLibrary, size: int) -> None:
    rows = torch.randn(4, size, generator=torch.Generator().manual_seed(size)) * torch.tensor(
        [[1e-20], [1], [3e38], [0]]
    )
    rows[2].clamp_(-3e38, 3e38)
    for name in (name for name in INSTRUCTION_SETS if library.use(name)):
        operations = Operations.in_dll(library.handle, f"sk_ops_{name}")
        for row in rows:
            found = torch.full((size + 1,), 99, dtype=torch.int8)
            factor = operations.quantise(row.data_ptr(), size, found.data_ptr())
            assert factor == pytest.approx(row.abs().max().item() / 127, rel=1e-6)
            assert ((found[:size].double() * factor - row).abs() <= 0.5001 * factor).all()
            assert found[size] == 99
        for bad in (math.nan, math.inf, -math.inf):
            row = rows[1].clone()
            row[size // 2] = bad
            assert not math.isfinite(operations.quantise(row.data_ptr(), size, found.data_ptr()))
        # Values too close to 0 to be told from it become 0, in place as well.
        row = torch.full((size,), 1e-40)
        assert operations.quantise(row.data_ptr(), size, row.data_ptr()) == 0
        assert not row.view(torch.int8)[:size].any()
