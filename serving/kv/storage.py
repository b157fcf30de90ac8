"""KV memory of the CPU kernels. Fresh blocks need no zeroing: attention never reads past a sequence's end."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lora_kernels.memory import give_back, lazy_zeros, runs
from serving.kv.shape import KVShape

# SK_GROUP of kernels/cpu/ops.h: keys and head dimensions are padded to whole groups.
_GROUP = 16


class BlockedKV:
    """Keys and values of every layer, in blocks of tokens.

    data: [blocks, layers, kv_heads, elements], where a head's elements of a block are
        keys [head_dim, lanes]: each token is a column, so that one vector holds one dimension of many keys; lanes is
            block_size rounded up to whole groups
        values [block_size, head_dim rounded up to whole groups]
    in float32. In bfloat16 and int8, two rows each are interleaved into one row of pairs; int8 has float32 scales
    after them, one for each key and value (kernels/cpu/ops.h).

    Blocks are the outer dimension: the blocks in use are then contiguous and fill whole large pages. With layers as the
    outer dimension, each layer would begin and end in a large page of its own: 30 MB more for a model of 30 layers.
    """

    def __init__(self, model: KVShape, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self.block_size = block_size
        shape = (num_blocks, model.num_layers, model.num_kv_heads, _head_elements(model, block_size, dtype))
        self.data = lazy_zeros(shape, dtype, torch.device("cpu"))
        self._memory = self.data.view(-1).view(torch.uint8).numpy().data

    @staticmethod
    def bytes_per_block(model: KVShape, block_size: int, dtype: torch.dtype) -> int:
        return model.num_layers * model.num_kv_heads * _head_elements(model, block_size, dtype) * dtype.itemsize

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero blocks in every layer."""
        index = torch.tensor(list(blocks), dtype=torch.int64)
        if len(index):
            self.data.index_fill_(0, index, 0)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy the first block of each pair to the second, in order."""
        for source, target in pairs:
            self.data[target].copy_(self.data[source])

    def save(self, block: int, out: memoryview) -> None:
        """Copy a block to `out`, of `bytes_per_block` bytes."""
        # Not by torch, whose threads a busy machine lets wait for one another.
        out[:] = self._block(block)

    def restore(self, block: int, data: memoryview) -> None:
        """Copy a block from `data`, of `bytes_per_block` bytes."""
        self._block(block)[:] = data

    def _block(self, block: int) -> memoryview:
        size = self.data[0].nbytes
        return self._memory[block * size : (block + 1) * size]

    def give_back(self, blocks: Iterable[int]) -> None:
        """Return the memory of free blocks to the system, which provides zeros when they are written again."""
        size = self.data[0].nbytes
        for first, end in runs(sorted(blocks)):
            give_back(self.data.data_ptr() + first * size, (end - first) * size)


def _head_elements(model: KVShape, block_size: int, dtype: torch.dtype) -> int:
    values = model.head_dim * _padded(block_size) + -(-block_size // 2) * 2 * _padded(model.head_dim)
    factors = 2 * _padded(block_size) * torch.float32.itemsize if dtype == torch.int8 else 0
    return values + factors


def _padded(size: int) -> int:
    return -(-size // _GROUP) * _GROUP
