"""The one thing every kernel does with a tile: the matrix product."""

from __future__ import annotations

from lora_kernels.ops.triton_or_none import tl, triton


@triton.jit
def dot(left, right, acc, UPCAST: tl.constexpr):
    """Return acc + left · right in float32.

    UPCAST: the interpreter's bfloat16 dot is silently wrong (Triton 3.6 and 3.9), so it runs in float32. "ieee" because
    float32 weights would be rounded to TF32 otherwise; it does nothing to 16-bit operands.
    """
    if UPCAST:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(left, right, acc, input_precision="ieee")
