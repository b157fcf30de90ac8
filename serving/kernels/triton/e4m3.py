"""Numbers of e4m3 (OCP "OFP8", 2023) made and read without the hardware's conversions."""

from __future__ import annotations

import triton
import triton.language as tl

# The largest number of e4m3.
E4M3_MAX = 448.0


@triton.jit
def widened(bits):
    """Return the float16 numbers of e4m3 bytes (uint8), exactly; there is no NaN among them.

    Exponent and fraction stand in place, and 2^8 is the difference of the exponents' biases. Triton converts e4m3 only
    from sm_89 on.
    """
    wide = bits.to(tl.uint16)
    placed = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return placed.to(tl.float16, bitcast=True) * 256.0


@triton.jit
def nearest(x):
    """Return float32 numbers of magnitude up to 448, each the nearest of e4m3, ties to even.

    Their conversion is exact then: the interpreter's (Triton 3.6, 3.9) loses the carry into the exponent: 127 is 64.
    """
    bits = x.to(tl.int32, bitcast=True)
    # Three binary places stay of 23; a carry moves on into the exponent.
    normal = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    # Numbers below 2^-6 are multiples of 2^-9, the distance of float32 numbers around 1.5 · 2^14.
    return tl.where(tl.abs(x) < 0.015625, (x + 24576.0) - 24576.0, normal.to(tl.float32, bitcast=True))
