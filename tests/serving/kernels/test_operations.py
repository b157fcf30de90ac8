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


class Operations(ctypes.Structure):
    """The beginning of sk_ops."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("rounds", ctypes.c_int),
        ("rms_norm", ctypes.c_void_p),
        ("silu_mul", Activation),
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
