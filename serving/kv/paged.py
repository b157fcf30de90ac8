"""Paged attention in plain torch: KV is stored in blocks, which the rows of a step read through block tables.

Single-token rows (decodes) share one padded gather and one attention call per layer; prefill chunks get one call each.
Unwritten slots and the padding block hold zeros instead of stale numbers: a masked NaN would still poison the sum,
because 0 · NaN is NaN. The runner zeroes blocks when they are allocated.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from lora_kernels.memory import lazy_zeros
from serving.kv.inputs import StepInputs
from serving.kv.shape import KVShape


class PagedKV:
    """Keys and values of every layer: [layers, 2, blocks, block_size, kv_heads, head_dim], zero at first."""

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        heads, dim = shape.num_kv_heads, shape.head_dim
        self.data = lazy_zeros((shape.num_layers, 2, num_blocks, block_size, heads, dim), dtype, device)
        self._flat = self.data.view(shape.num_layers, 2, num_blocks * block_size, heads, dim)
        self._groups = shape.num_heads // heads

    @staticmethod
    def bytes_per_block(shape: KVShape, block_size: int, dtype: torch.dtype) -> int:
        return 2 * shape.num_layers * block_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize

    def zero(self, blocks: list[int]) -> None:
        """Zero blocks in every layer."""
        if blocks:
            self.data.index_fill_(2, torch.tensor(blocks, device=self.data.device), 0)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """Write k and v [rows, kv_heads, head_dim], then attend q [rows, heads, head_dim]; returns q's shape."""
        keys, values = self._flat[layer, 0], self._flat[layer, 1]
        keys.index_copy_(0, step.slots, k)
        values.index_copy_(0, step.slots, v)
        out = torch.empty_like(q)
        if step.decodes:
            out[: step.decodes] = self._decode(layer, q[: step.decodes], step)
        for chunk in step.chunks:
            rows = slice(chunk.row, chunk.row + chunk.count)
            if chunk.start == 0:
                out[rows] = self._causal(q[rows], k[rows], v[rows], None)
            else:
                total = chunk.start + chunk.count
                past = self.data[layer].index_select(1, chunk.blocks).flatten(1, 2)
                mask = torch.ones(chunk.count, total, dtype=torch.bool, device=q.device).tril_(chunk.start)
                out[rows] = self._causal(q[rows], past[0, :total], past[1, :total], mask)
        return out

    def _decode(self, layer: int, q: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """Attend one query token per row. Heads that share a KV head become its query rows, so KV is never repeated."""
        rows, heads, dim = q.shape
        # index_select copies whole blocks; indexing with a tensor copies elements and takes four times as long.
        gathered = self.data[layer].index_select(1, step.block_tables.flatten())
        keys, values = gathered.view(2, rows, -1, heads // self._groups, dim).transpose(2, 3).unbind(0)
        grouped = q.view(rows, heads // self._groups, self._groups, dim)
        return functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=step.mask).reshape(q.shape)

    @staticmethod
    def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Attend q [count, heads, dim] over k and v [total, kv_heads, dim]; without a mask causally, count = total."""
        out = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)
