"""Residual add and RMSNorm in one pass (Zhang & Sennrich, arXiv 1910.07467)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_rms_norm(residual, delta, weight, out, hidden, eps, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr):
    """Add and normalise one row per program, with sums in float32."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    x = tl.load(residual + row * hidden + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta + row * hidden + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * hidden + column, x.to(residual.dtype.element_ty), mask=inside)
    inverse = tl.rsqrt(tl.sum(x * x) / hidden + eps)
    y = x * inverse * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + column, y.to(out.dtype.element_ty), mask=inside)


def add_rms_norm(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> torch.Tensor:
    """Add delta to residual in place (None: skip), then write out = residual · weight / rms(residual).

    residual, delta, out: [rows, hidden], contiguous, one floating dtype; out may be residual without a delta, and is
        then normed in place
    weight: [hidden]
    Returns out.
    """
    rows, hidden = residual.shape
    block = triton.next_power_of_2(hidden)
    # One warp per 512 elements: two loads of 16 bytes per lane in bfloat16.
    warps = min(16, max(1, block // 512))
    _add_rms_norm[(rows,)](
        residual,
        residual if delta is None else delta,
        weight,
        out,
        hidden,
        eps,
        HAS_DELTA=delta is not None,
        BLOCK=block,
        num_warps=warps,
    )
    return out
