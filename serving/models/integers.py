"""From a checkpoint's packed integers to grouped weights, number for number; what does not fit is refused.

Each layout is the one that its library's own dequantisation reads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from serving.kernels.grouped import GroupedWeight, pack_nibbles
from serving.models import gguf_blocks
from serving.models.integer_config import Integers
from serving.models.quantization_keys import QuantizationError

Find = Callable[[str], torch.Tensor | None]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# The output that each nibble of an AWQ word holds, from the lowest on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# Tensors beside a plain weight that would say that it is not plain.
_MARKS = ("weight_packed", "qweight", "weight_scale", "scales", *gguf_blocks.NAMES)


def quantised(module: str, outputs: int, inputs: int, form: Integers, find: Find) -> GroupedWeight | None:
    """Return a module's weight, None where the checkpoint has a plain one.

    find: a tensor of the checkpoint by name

    Raises QuantizationError: tensors missing, misshapen or of other types; groups that do not divide; an order of
    inputs that groups do not follow; scales that are not finite; a module that should not be quantised.
    """
    marks = [name for name in _MARKS if find(f"{module}.{name}") is not None]
    plain = find(f"{module}.weight") is not None
    if plain and marks:
        raise QuantizationError(f"{module} has both weight and {marks[0]}: only one of them can be its weight")
    if plain:
        return None
    if form.ignores(module):
        raise QuantizationError(f"{module}.weight is missing, and quantization_config says that it is not quantised")
    if form.method == "gguf":
        return gguf_blocks.weight(module, outputs, inputs, find)
    group = form.group or inputs
    if inputs % group:
        raise QuantizationError(f"{module} has {inputs} inputs, which groups of {group} do not divide")
    reader = {"compressed-tensors": _compressed_tensors, "gptq": _gptq, "awq": _awq}[form.method]
    return reader(_Module(module, outputs, inputs, group, form, find))


class _Module:
    """One module's sizes, and its tensors by their last names."""

    def __init__(self, name: str, outputs: int, inputs: int, group: int, form: Integers, find: Find) -> None:
        self.name, self.outputs, self.inputs, self.group, self.form = name, outputs, inputs, group, form
        self.groups, self.per_word = inputs // group, 32 // form.bits
        self._find = find

    def words(self, name: str, *shape: int) -> torch.Tensor:
        return self._get(name, (torch.int32,), *shape)

    def scales(self, name: str, *shape: int) -> torch.Tensor:
        scales = self._get(name, _FLOATS, *shape)
        if not bool(scales.isfinite().all()):
            raise QuantizationError(f"{self.name}.{name} has a value that is not finite")
        return scales

    def find(self, name: str) -> torch.Tensor | None:
        return self._find(f"{self.name}.{name}")

    def unpack(self, words: torch.Tensor, order: tuple[int, ...] | None = None) -> torch.Tensor:
        """Return the numbers of words [a, b], lowest bits first, uint8 [a, b · numbers a word]."""
        bits = self.form.bits
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        numbers = (words[..., None] >> shifts & (1 << bits) - 1).to(torch.uint8)
        if order is not None:
            numbers = numbers[..., torch.tensor(order).argsort()]
        return numbers.flatten(-2)

    def check_order(self, name: str) -> None:
        """Refuse a list of the inputs' groups, unless every group's inputs lie side by side."""
        order = self.find(name)
        if order is None:
            return
        if order.shape != (self.inputs,) or not torch.equal(order.long(), torch.arange(self.inputs) // self.group):
            raise QuantizationError(
                f"{self.name}.{name}: its groups are not {self.group} neighbouring inputs each (act-order), which is "
                "not served; quantise with desc_act false, or with static groups"
            )

    def weight(self, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> GroupedWeight:
        """codes, zeros: unsigned; zeros None: the middle of the range."""
        scales = scales.contiguous()
        centre = 1 << self.form.bits - 1
        if zeros is not None and bool((zeros == centre).all()):
            zeros = None
        if self.form.bits == 8:
            signed = (codes ^ 0x80).view(torch.int8)
            beside = None if zeros is None else (zeros - centre).to(scales.dtype).contiguous()
            return GroupedWeight(signed.contiguous(), scales, self.group, zeros=beside)
        beside = None if zeros is None else zeros.to(scales.dtype).contiguous()
        return GroupedWeight(pack_nibbles(codes).contiguous(), scales, self.group, zeros=beside)

    def _get(self, name: str, types: tuple[torch.dtype, ...], *shape: int) -> torch.Tensor:
        tensor = self.find(name)
        if tensor is None:
            raise QuantizationError(
                f"{self.name}.{name} is missing, which quant_method {self.form.method!r} implies; download the missing "
                "shard, or correct quantization_config"
            )
        if tensor.dtype not in types or tuple(tensor.shape) != shape:
            raise QuantizationError(
                f"{self.name}.{name} is {tensor.dtype} {tuple(tensor.shape)}: {types[0]} {shape} is expected for "
                f"{self.form.bits} bits in groups of {self.group}"
            )
        return tensor


def _compressed_tensors(m: _Module) -> GroupedWeight:
    # Words at the end of a row are filled up.
    words = m.words("weight_packed", m.outputs, -(-m.inputs // m.per_word))
    shape = m.find("weight_shape")
    if shape is not None and shape.tolist() != [m.outputs, m.inputs]:
        raise QuantizationError(f"{m.name}.weight_shape is {shape.tolist()}: {[m.outputs, m.inputs]} is expected")
    m.check_order("weight_g_idx")
    scales = m.scales("weight_scale", m.outputs, m.groups)
    return m.weight(m.unpack(words)[:, : m.inputs], scales, None if m.form.symmetric else _stored_zeros(m))


def _stored_zeros(m: _Module) -> torch.Tensor:
    """Return compressed-tensors' zeros, unsigned: packed along the outputs, or, in early files, one to a byte."""
    stored, centre = m.find("weight_zero_point"), 1 << m.form.bits - 1
    if stored is not None and stored.dtype == torch.int8 and tuple(stored.shape) == (m.outputs, m.groups):
        return stored.short() + centre
    words = m.words("weight_zero_point", -(-m.outputs // m.per_word), m.groups)
    return m.unpack(words.T.contiguous()).T[: m.outputs].short()


def _gptq(m: _Module) -> GroupedWeight:
    for name, size in (("inputs", m.inputs), ("outputs", m.outputs)):
        if size % m.per_word:
            raise QuantizationError(f"{m.name} has {size} {name}: multiples of {m.per_word} are expected")
    words = m.words("qweight", m.inputs // m.per_word, m.outputs)
    m.check_order("g_idx")
    zeros = m.unpack(m.words("qzeros", m.groups, m.outputs // m.per_word)).T.short() + m.form.stored_zero_offset
    scales = m.scales("scales", m.groups, m.outputs).T
    return m.weight(m.unpack(words.T.contiguous()), scales, zeros)


def _awq(m: _Module) -> GroupedWeight:
    if m.outputs % m.per_word:
        raise QuantizationError(f"{m.name} has {m.outputs} outputs: multiples of {m.per_word} are expected")
    codes = m.unpack(m.words("qweight", m.inputs, m.outputs // m.per_word), _AWQ_ORDER).T
    zeros = m.unpack(m.words("qzeros", m.groups, m.outputs // m.per_word), _AWQ_ORDER).T.short()
    return m.weight(codes, m.scales("scales", m.groups, m.outputs).T, zeros)
