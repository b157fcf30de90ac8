"""Weights packed for the C kernels of cpu/linear.h, and a plain call of them for one weight."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from serving.kernels.library import KernelLibrary
from serving.memory import LARGE_PAGE, mapped

Pointer, Integer = ctypes.c_void_p, ctypes.c_int64

# As SK_F32, SK_BF16 and SK_INT8.
DTYPES = ("float32", "bfloat16", "int8")
_SOURCE_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
# SK_PANEL, and SK_BLOCK: int8 weights are filled up to whole blocks of k.
_PANEL = 16
_BLOCK = 16
_ALIGNMENT = 64
# Of sk_linear_run: weights; x, ldx, rows; y, ldy; accumulate, scratch, threads.
_RUN_ARGUMENTS = (
    Pointer,
    Integer,
    *(Pointer, Integer, Integer),
    *(Pointer, Integer),
    ctypes.c_int,
    Pointer,
    ctypes.c_int,
)


class CGroups(ctypes.Structure):
    """`sk_groups` of linear.h."""

    _fields_ = (("size", Integer), ("codes", Integer), ("offset", Integer), ("type", Integer))


class CLinear(ctypes.Structure):
    """`sk_linear` of linear.h."""

    _fields_ = (
        ("n", Integer),
        ("k", Integer),
        ("dtype", Integer),
        ("packed", Pointer),
        ("scales", Pointer),
        ("groups", CGroups),
    )


class WeightArena:
    """One stretch of memory for many packed weights, on large pages where the system gives them.

    The memory returns to the system when the arena and all weights in it are gone.
    """

    def __init__(self, capacity: int) -> None:
        """Reserve `capacity` bytes; see `packed_bytes`. Memory is not touched before it is written."""
        self._memory = mapped(capacity + LARGE_PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._next = -(-start // LARGE_PAGE) * LARGE_PAGE
        self._end = self._next + capacity

    def take(self, nbytes: int) -> int:
        """Return the address of `nbytes` bytes, aligned to a cache line. Raises MemoryError when the arena is full."""
        address = self._next
        if address + nbytes > self._end:
            raise MemoryError(f"{nbytes} bytes asked of an arena that has {self._end - address} left")
        self._next += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return address


def packed_bytes(n: int, k: int, dtype: str) -> int:
    """Return the bytes that an arena needs for one packed weight [n, k], its scales and the alignment of both."""
    columns = -(-n // _PANEL) * _PANEL
    return _weight_bytes(columns, k, dtype) + columns * 4 + 2 * _ALIGNMENT


def _weight_bytes(columns: int, k: int, dtype: str) -> int:
    if dtype == "int8":
        return columns * -(-k // _BLOCK) * _BLOCK
    return columns * k * {"float32": 4, "bfloat16": 2}[dtype]


class PackedLinear:
    """A weight [n, k] in the layout of linear.h; the source is read once and not kept.

    "bfloat16" rounds a float32 source to nearest even. "int8" is symmetric, one scale per output column; activations
    then become 8-bit integers too, one scale per 16 values of a row. The error of both is almost twice the error of the
    weights alone.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        dtype: str,
        library: KernelLibrary,
        arena: WeightArena | None = None,
        threads: int | None = None,
    ) -> None:
        """Pack `weight`, float32 or bfloat16 on the CPU. Without an arena the weight gets its own.

        Raises ValueError for another shape or type, an odd k, or a weight that is not finite (int8).
        """
        if weight.ndim != 2 or weight.dtype not in _SOURCE_DTYPES or weight.device.type != "cpu":
            raise ValueError(
                f"a weight must be a float32 or bfloat16 matrix on the CPU, not {tuple(weight.shape)} "
                f"{weight.dtype} on {weight.device}"
            )
        if dtype not in DTYPES:
            raise ValueError(f"{dtype!r} is none of {', '.join(DTYPES)}")
        self.n, self.k = weight.shape
        if self.k % 2 or not self.n or not self.k:
            raise ValueError(f"a weight of {self.n} x {self.k}: k must be even, and neither may be 0")
        if dtype == "int8" and not bool(torch.isfinite(weight).all()):
            raise ValueError("a weight that is not finite has no 8-bit form")
        self.dtype = dtype
        self._library = library
        self._arena = arena or WeightArena(packed_bytes(self.n, self.k, dtype))
        code = DTYPES.index(dtype)
        columns = -(-self.n // _PANEL) * _PANEL
        self.nbytes = _weight_bytes(columns, self.k, dtype)
        packed = self._arena.take(self.nbytes)
        scales = self._arena.take(columns * 4) if dtype == "int8" else None
        self.c = CLinear(self.n, self.k, code, packed, scales)

        threads = threads or torch.get_num_threads()
        source = weight.detach()
        if source.stride(1) != 1:
            source = source.contiguous()
        scratch = torch.empty(threads * _PANEL * self.k)
        pack = library.handle.sk_pack
        pack.argtypes = (Pointer, *(Integer,) * 5, Pointer, Pointer, Pointer, ctypes.c_int)
        pack(
            source.data_ptr(),
            _SOURCE_DTYPES[source.dtype],
            source.stride(0),
            self.n,
            self.k,
            code,
            packed,
            scales,
            scratch.data_ptr(),
            threads,
        )

    def __call__(
        self, x: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False, threads: int | None = None
    ) -> torch.Tensor:
        """Multiply x [rows, k] float32 by the transposed weight: [rows, n] float32, into `out` or added to it.

        Rows may be strided, columns may not. Raises ValueError for other shapes and types.
        """
        if out is None:
            if accumulate:
                raise ValueError("nothing to add to: accumulate needs out")
            out = torch.empty(x.shape[0], self.n)
        for name, tensor, columns in (("x", x, self.k), ("out", out, self.n)):
            if tensor.dtype != torch.float32 or tensor.ndim != 2 or tensor.shape[1] != columns or tensor.stride(1) != 1:
                raise ValueError(f"{name} must be float32 [rows, {columns}] with adjacent columns")
        if x.shape[0] != out.shape[0]:
            raise ValueError(f"{x.shape[0]} rows of x, {out.shape[0]} of out")
        threads = threads or torch.get_num_threads()
        scratch = torch.empty(scratch_bytes(self._library, self.k, x.shape[0], threads) + _ALIGNMENT, dtype=torch.uint8)
        run_products(
            self._library,
            (self,),
            x.data_ptr(),
            x.stride(0),
            x.shape[0],
            out.data_ptr(),
            out.stride(0),
            -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT,
            threads,
            accumulate,
        )
        return out


def run_products(
    library: KernelLibrary,
    weights: Sequence[PackedLinear],
    x: int,
    ldx: int,
    rows: int,
    y: int,
    ldy: int,
    scratch: int,
    threads: int,
    accumulate: bool = False,
) -> None:
    """Run the products in order with `sk_linear_run`, each from x into y; x and y have room for the largest."""
    pointers = (Pointer * len(weights))(*(ctypes.addressof(weight.c) for weight in weights))
    run = library.handle.sk_linear_run
    run.argtypes = _RUN_ARGUMENTS
    run(pointers, len(weights), x, ldx, rows, y, ldy, accumulate, scratch, threads)


def multiply_rows(library: KernelLibrary, weight: CLinear, x: torch.Tensor) -> torch.Tensor:
    """Return x Wᵀ, float32 [rows, n], of x float32 [rows, k], on the calling thread alone."""
    x = x.contiguous()
    out = torch.empty(len(x), weight.n)
    scratch = torch.empty(scratch_bytes(library, weight.k, len(x), 1) + _ALIGNMENT, dtype=torch.uint8)
    begin = -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT
    pointers = (Pointer * 1)(ctypes.addressof(weight))
    run = library.handle.sk_linear_run
    run.argtypes = _RUN_ARGUMENTS
    run(pointers, 1, x.data_ptr(), weight.k, len(x), out.data_ptr(), weight.n, 0, begin, 1)
    scratch.zero_()
    return out


def row_squares(library: KernelLibrary, weight: CLinear) -> torch.Tensor:
    """Return the sum of squares of each row of a packed weight, float32 [n]."""
    out = torch.empty(weight.n)
    function = library.handle.sk_row_squares
    function.argtypes = (Pointer, Pointer, Pointer)
    values = torch.empty(weight.k)
    function(ctypes.addressof(weight), values.data_ptr(), out.data_ptr())
    return out


def scratch_bytes(library: KernelLibrary, k: int, rows: int, threads: int) -> int:
    """Return the bytes of scratch that `sk_linear_team` needs for up to `rows` rows of any weight with this k."""
    function = library.handle.sk_linear_scratch
    function.argtypes, function.restype = (Integer,) * 3, Integer
    return int(function(k, rows, threads))


def bound_rows(library: KernelLibrary, dtype: str) -> int:
    """Return the rows up to which reading a weight of this type takes longer than its products on this processor.

    dtype: one of DTYPES, or "grouped", whose products are those of bfloat16
    """
    function = library.handle.sk_linear_bound
    function.argtypes, function.restype = (Integer,), Integer
    return int(function(DTYPES.index("bfloat16" if dtype == "grouped" else dtype)))
