"""The elementwise half of a gated MLP (Shazeer, arXiv 2002.05202), gate and up side by side in one product:
silu(gate) · up, or gelu(gate) · up with GELU's tanh form.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Elements per program: 1024 bfloat16 are 2 KB, four warps of 16-byte loads.
BLOCK = 1024


@triton.jit
def _gate_mul(gate_up, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    inner = gate
    if GELU:  # x · (1 + tanh(u)) / 2 is x · sigmoid(2u)
        inner = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate)
    tl.store(out + row * width + column, (gate * tl.sigmoid(inner) * up).to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Compute gate_up [rows, 2 · width] → out [rows, width] in float32, both contiguous. Returns out."""
    return _launch(gate_up, out, gelu=False)


def gelu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Compute as `silu_mul`, with GELU's tanh form."""
    return _launch(gate_up, out, gelu=True)


def _launch(gate_up: torch.Tensor, out: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    rows, width = out.shape
    _gate_mul[(rows, triton.cdiv(width, BLOCK))](gate_up, out, width, GELU=gelu, BLOCK=BLOCK)
    return out
