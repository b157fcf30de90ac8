"""Weights that stay in 4 or 8 bits, packed for the C kernels: their products are those of bfloat16, bit for bit."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from serving.kernels.grouped import GroupedWeight
from serving.kernels.library import KernelLibrary
from serving.kernels.linear import CGroups, CLinear, Integer, PackedLinear, Pointer, WeightArena, packed_bytes
from serving.kernels.scaled import ScaledWeight

# SK_GROUPED, and SK_UNIT: k of the smallest piece.
_GROUPED, _UNIT = 3, 8
_U4, _S8, _E4M3 = range(3)
_SCALE_ALONE, _MINIMUM, _ZERO = range(3)
# SK_F32, SK_BF16, SK_F16
_SCALE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def stays_packed(weight: GroupedWeight | ScaledWeight) -> bool:
    """Return whether the C kernels hold such a weight as it is: inputs and groups must be whole units of 8."""
    form = _form(weight)
    return form.inputs % _UNIT == 0 and form.groups.size % _UNIT == 0


class GroupedLinear(PackedLinear):
    """A weight [n, k] in the layout of unpack.h; the source is read once and not kept.

    A tile's weights become bfloat16 as they are multiplied: `weight.dequantised()` rounded to nearest even.
    """

    def __init__(
        self,
        weight: GroupedWeight | ScaledWeight,
        library: KernelLibrary,
        arena: WeightArena | None = None,
        threads: int | None = None,
    ) -> None:
        """Pack `weight`, on the CPU. Without an arena the weight gets its own.

        Raises ValueError for inputs or groups that are no whole units of 8, and scales that are not finite.
        """
        form = _form(weight)
        if not stays_packed(weight) or not form.outputs or not form.inputs:
            raise ValueError(f"a weight of {form.outputs} x {form.inputs} in groups of {form.groups.size}: units are 8")
        if not all(bool(part.isfinite().all()) for part in (form.scales, form.offsets) if part is not None):
            raise ValueError("scales, minima and zeros must be finite")
        self.n, self.k, self.dtype = form.outputs, form.inputs, "grouped"
        self._library = library
        handle = library.handle
        handle.sk_grouped_panel_bytes.argtypes = (Integer, Pointer)
        handle.sk_grouped_panel_bytes.restype = Integer
        panels = -(-self.n // 16)
        self.nbytes = panels * int(handle.sk_grouped_panel_bytes(self.k, ctypes.byref(form.groups)))
        self._arena = arena or WeightArena(packed_bytes(self.n, self.k, "bfloat16"))
        packed = self._arena.take(self.nbytes)
        self.c = CLinear(self.n, self.k, _GROUPED, packed, None, form.groups)
        pack = handle.sk_pack_groups
        pack.argtypes = (Pointer, Integer, Pointer, Pointer, Integer, Integer, Pointer, Pointer, ctypes.c_int)
        pack(
            form.codes.data_ptr(),
            form.codes.stride(0),
            form.scales.data_ptr(),
            None if form.offsets is None else form.offsets.data_ptr(),
            self.n,
            self.k,
            ctypes.byref(form.groups),
            packed,
            threads or torch.get_num_threads(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """What `sk_pack_groups` reads: codes of one byte [n, k] or [n, k / 2], scales and offsets [n, groups]."""

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    groups: CGroups
    outputs: int
    inputs: int


def _form(weight: GroupedWeight | ScaledWeight) -> _Form:
    if isinstance(weight, ScaledWeight):
        outputs, inputs = weight.data.shape
        scales = weight.scales.repeat_interleave(weight.rows, 0)[:outputs]
        groups = CGroups(weight.columns, _E4M3, _SCALE_ALONE, 0)
        return _Form(weight.data.contiguous(), scales.contiguous(), None, groups, outputs, inputs)
    outputs, inputs = weight.shape
    offset = _MINIMUM if weight.minima is not None else _ZERO if weight.zeros is not None else _SCALE_ALONE
    beside = weight.minima if weight.minima is not None else weight.zeros
    groups = CGroups(weight.group, _U4 if weight.four_bits else _S8, offset, _SCALE_TYPES[weight.scales.dtype])
    return _Form(
        weight.codes.contiguous(),
        weight.scales.contiguous(),
        None if beside is None else beside.contiguous(),
        groups,
        outputs,
        inputs,
    )
