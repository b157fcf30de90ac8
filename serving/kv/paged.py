"""Paged attention in plain torch: KV is stored in blocks, which the rows of a step read through block tables.

Single-token rows (decodes) share one padded gather and one attention call per layer; prefill chunks get one call each.
Unwritten slots and the padding block hold zeros instead of stale numbers: a masked NaN would still poison the sum,
because 0 · NaN is NaN. The runner zeroes blocks when they are allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from lora_kernels.memory import lazy_zeros
from serving.block_copies import Ended
from serving.kv.eight_bits import FP8, dequantise, quantise
from serving.kv.inputs import StepInputs
from serving.kv.scores import Scores
from serving.kv.shape import KVShape


@dataclass(frozen=True, slots=True, eq=False)
class KVLayer:
    """One layer's cache by slot, slot = block · block_size + offset.

    keys, values: [slots, kv_heads, head_dim]
    key_scales, value_scales: float32 [slots, kv_heads] where keys and values are float8_e4m3fn, else None
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None


class PagedKV:
    """Keys and values of every layer, zero at first.

    data: [layers, 2, blocks, block_size, kv_heads, head_dim]
    scales: float32 [layers, 2, blocks, block_size, kv_heads] if data is float8_e4m3fn, else None
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        heads, dim = shape.num_kv_heads, shape.head_dim
        size = (shape.num_layers, 2, num_blocks, block_size, heads)
        self.data = lazy_zeros((*size, dim), dtype, device)
        self.scales = lazy_zeros(size, torch.float32, device) if dtype == FP8 else None
        self._groups = shape.num_heads // heads

    @staticmethod
    def bytes_per_block(shape: KVShape, block_size: int, dtype: torch.dtype) -> int:
        """Return the bytes of one block over all layers, scales included."""
        vector = shape.head_dim * dtype.itemsize + (torch.float32.itemsize if dtype == FP8 else 0)
        return 2 * shape.num_layers * block_size * shape.num_kv_heads * vector

    def layer(self, index: int) -> KVLayer:
        """Return views of one layer's cache."""
        keys, values = self.data[index].flatten(1, 2).unbind(0)
        if self.scales is None:
            return KVLayer(keys, values)
        return KVLayer(keys, values, *self.scales[index].flatten(1, 2).unbind(0))

    def zero(self, blocks: list[int]) -> None:
        """Zero blocks, and their scales, in every layer."""
        if not blocks:
            return
        index = torch.tensor(blocks, device=self.data.device)
        _bytes(self.data).index_fill_(2, index, 0)
        if self.scales is not None:
            self.scales.index_fill_(2, index, 0)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy the first block of each pair to the second in every layer, in order."""
        for source, target in pairs:
            data = _bytes(self.data)
            data[:, :, target] = data[:, :, source]
            if self.scales is not None:
                self.scales[:, :, target] = self.scales[:, :, source]

    def save(self, block: int, out: memoryview) -> Ended | None:
        """Copy a block and its scales to `out`, of `bytes_per_block` bytes. On a GPU the copy takes its place among the
        launches, and the host goes on if `out` is pinned."""
        for part, data in self._parts(block, out):
            data.copy_(part.reshape(-1).view(torch.uint8), non_blocking=True)
        return self._ended()

    def restore(self, block: int, data: memoryview) -> Ended | None:
        """Copy a block and its scales from `data`, of `bytes_per_block` bytes, as `save` does."""
        for part, raw in self._parts(block, data):
            part.copy_(raw.to(part.device, non_blocking=True).view(part.dtype).view(part.shape))
        return self._ended()

    def _parts(self, block: int, host: memoryview) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield this block's keys and values [layers, 2, ...], then its scales, each with its bytes in `host`."""
        raw, start = torch.frombuffer(host, dtype=torch.uint8), 0
        for tensor in (_bytes(self.data), self.scales):
            if tensor is not None:
                part = tensor[:, :, block]
                size = part.numel() * part.element_size()
                yield part, raw[start : start + size]
                start += size

    def _ended(self) -> Ended | None:
        if self.data.device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record()
        return event.query

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        step: StepInputs,
        scores: Scores | None = None,
    ) -> torch.Tensor:
        """Write k and v [rows, kv_heads, head_dim], then attend q [rows, heads, head_dim]; returns q's shape.

        scores: None: scaled by 1 / √head_dim, without a cap or a window
        """
        scores = scores or Scores(q.shape[-1] ** -0.5)
        k, v = self._write(layer, step.slots, k, v)
        out = torch.empty_like(q)
        if step.decodes:
            out[: step.decodes] = self._decode(layer, q[: step.decodes], step, scores)
        for chunk in step.chunks:
            rows, total = slice(chunk.row, chunk.row + chunk.count), chunk.start + chunk.count
            mask = _chunk_mask(chunk.count, total, scores, q.device)
            if chunk.start == 0:
                out[rows] = self._causal(q[rows], k[rows], v[rows], mask, scores)
            else:
                past = self._read(layer, chunk.blocks, q.dtype).flatten(1, 2)
                out[rows] = self._causal(q[rows], past[0, :total], past[1, :total], mask, scores)
        return out

    def _write(
        self, index: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of rows to their slots. Returns both as they will be read."""
        layer, out = self.layer(index), []
        for x, data, scales in ((k, layer.keys, layer.key_scales), (v, layer.values, layer.value_scales)):
            if scales is None:
                data.index_copy_(0, slots, x)
                out.append(x)
                continue
            short, factors = quantise(x)
            _bytes(data).index_copy_(0, slots, _bytes(short))
            scales.index_copy_(0, slots, factors)
            out.append(dequantise(short, factors, x.dtype))
        return out[0], out[1]

    def _read(self, layer: int, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return [2, blocks, block_size, kv_heads, head_dim] of these blocks; `dtype` if they are stored in 8 bits."""
        # index_select copies whole blocks; indexing with a tensor copies elements and takes four times as long.
        data = self.data[layer].index_select(1, blocks)
        if self.scales is None:
            return data
        return dequantise(data, self.scales[layer].index_select(1, blocks), dtype)

    def _decode(self, layer: int, q: torch.Tensor, step: StepInputs, scores: Scores) -> torch.Tensor:
        """Attend one query token per row. Heads that share a KV head become its query rows, so KV is never repeated."""
        rows, heads, dim = q.shape
        gathered = self._read(layer, step.block_tables.flatten(), q.dtype)
        keys, values = gathered.view(2, rows, -1, heads // self._groups, dim).transpose(2, 3).unbind(0)
        grouped = q.view(rows, heads // self._groups, self._groups, dim)
        mask = step.mask
        if scores.window is not None:
            first = step.positions[:rows] - scores.window + 1
            mask = mask & (torch.arange(mask.shape[-1], device=q.device) >= first[:, None, None, None])
        return _attention(grouped, keys, values, mask, scores).reshape(q.shape)

    @staticmethod
    def _causal(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scores: Scores
    ) -> torch.Tensor:
        """Attend q [count, heads, dim] over k and v [total, kv_heads, dim]; without a mask causally, count = total."""
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return _attention(q, k, v, mask, scores)[0].transpose(0, 1)


def _chunk_mask(count: int, total: int, scores: Scores, device: torch.device) -> torch.Tensor | None:
    """Return which of `total` keys the last `count` tokens see, bool [count, total]; None: all of them causally."""
    start = total - count
    if start == 0 and scores.window is None and scores.cap is None:
        return None
    mask = torch.ones(count, total, dtype=torch.bool, device=device).tril_(start)
    return mask if scores.window is None else mask.triu_(start - scores.window + 1)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scores: Scores
) -> torch.Tensor:
    """Attend q [n, heads, rows, dim] over k and v [n, kv_heads, keys, dim]."""
    if scores.cap is None:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scores.scale, enable_gqa=True
        )
    assert mask is not None
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    products = q @ k.transpose(-1, -2) * scores.scale
    capped = scores.cap * torch.tanh(products / scores.cap)
    weights = capped.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32)
    return weights.to(q.dtype) @ v


def _bytes(data: torch.Tensor) -> torch.Tensor:
    """Return a view for copies and fills, which torch does not have for 8-bit floats on a CPU."""
    return data.view(torch.uint8) if data.dtype == FP8 else data
