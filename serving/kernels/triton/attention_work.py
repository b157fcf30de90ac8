"""The work list of single-token attention, made on the device: a graph recorded once serves any number of tokens.

A row's keys are cut into splits whose size depends on the row's own length alone, so the bits of a row's result depend
neither on its neighbours nor on how many programs share the work. An item of the list is one split.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.kernels.triton.attention import MIN_ROWS

# The fewest keys of a split: a lone row of 512 keys and 8 KV heads fills 32 programs, one of 4,096 keys 256.
SPLIT_KEYS = 128
# The most splits of a row: 131,072 keys make 32 splits of 4,096 for each KV head. Bounds the scratch.
MAX_SPLITS = 32
# Numbers per item of the list: one 32-byte sector.
ITEM = 8


@triton.jit
def split_size(length, SPLIT_KEYS: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Return the keys of a row's splits: the smallest multiple of SPLIT_KEYS that leaves at most MAX_SPLITS."""
    return (length + SPLIT_KEYS * MAX_SPLITS - 1) // (SPLIT_KEYS * MAX_SPLITS) * SPLIT_KEYS


@triton.jit
def split_count(length, SPLIT_KEYS: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Return how many splits a row of `length` keys has."""
    size = split_size(length, SPLIT_KEYS, MAX_SPLITS)
    return (length + size - 1) // size


@triton.jit
def list_splits(
    positions,
    row_tables,
    counts,
    items,
    ROWS: tl.constexpr,
    CAPACITY: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    ITEM: tl.constexpr,
):
    """Write the items of one row per program, behind those of the rows before it; the last row writes their number."""
    row = tl.program_id(0)
    rows = tl.load(counts)
    if row < rows:
        other = tl.arange(0, ROWS)
        lengths = tl.load(positions + other, mask=other < rows, other=0) + 1
        before = tl.sum(tl.where(other < row, split_count(lengths, SPLIT_KEYS, MAX_SPLITS), 0))
        length = tl.load(positions + row) + 1
        size = split_size(length, SPLIT_KEYS, MAX_SPLITS)
        splits = (length + size - 1) // size
        split = tl.arange(0, MAX_SPLITS)
        item = items + (1 + before + split) * ITEM
        there = split < splits
        begin = split * size
        tl.store(item, row + split * 0, mask=there)
        tl.store(item + 1, begin, mask=there)
        tl.store(item + 2, tl.minimum(begin + size, length), mask=there)
        tl.store(item + 3, tl.where(splits == 1, -1, row * CAPACITY + split), mask=there)
        tl.store(item + 4, tl.load(row_tables + row) + split * 0, mask=there)
        if row == rows - 1:
            tl.store(items, before + splits)
    elif row == 0:
        tl.store(items, 0)


class AttentionWork:
    """The list of splits and their partial results, at static addresses: one for all layers of a model.

    items: int32 [1 + rows · splits, ITEM]: the number of items, then of each its row, its first key, the key after its
        last, its place in `parts` (-1 where it is its row's only one), and its block table
    parts: float32 [rows · splits, heads, head_dim], not normalised
    stats: float32 [rows · splits, heads, 2]: the maximum of the scores times log2 e, and the sum of the weights
    programs: how many share the work; results do not depend on it
    """

    def __init__(
        self,
        rows: int,
        heads: int,
        head_dim: int,
        max_len: int,
        device: torch.device,
        *,
        programs: int | None = None,
    ) -> None:
        self.rows, self.splits = rows, self.most_splits(max_len)
        places = rows * self.splits
        self.items = torch.zeros(1 + places, ITEM, dtype=torch.int32, device=device)
        self.parts = torch.empty(places, heads, head_dim, device=device)
        self.stats = torch.empty(places, heads, 2, device=device)
        self.programs = programs or _programs(head_dim, device)

    @staticmethod
    def most_splits(max_len: int) -> int:
        """Return the most splits of a row of up to `max_len` keys."""
        return max(1, min(MAX_SPLITS, triton.cdiv(max_len, SPLIT_KEYS)))

    @classmethod
    def bytes(cls, rows: int, heads: int, head_dim: int, max_len: int) -> int:
        """Return the device memory: rows · splits · (heads · (head_dim + 2) + ITEM) · 4 bytes, and one item."""
        return rows * cls.most_splits(max_len) * (heads * (head_dim + 2) + ITEM) * 4 + ITEM * 4

    def fill(self, positions: torch.Tensor, row_tables: torch.Tensor, counts: torch.Tensor) -> None:
        """List the splits of the first counts[0] rows, once per forward pass, before the layers.

        positions, row_tables: int32 [rows], each row's position and the number of its block table
        counts: int32, read on the device
        """
        list_splits[(min(self.rows, len(positions)),)](
            positions,
            row_tables,
            counts,
            self.items,
            ROWS=max(MIN_ROWS, triton.next_power_of_2(self.rows)),
            CAPACITY=self.splits,
            SPLIT_KEYS=SPLIT_KEYS,
            MAX_SPLITS=MAX_SPLITS,
            ITEM=ITEM,
            num_warps=4,
        )


def _programs(head_dim: int, device: torch.device) -> int:
    """Return as many programs as the GPU holds at once: shared memory lets an SM of sm_90 hold three, six up to 64
    dimensions (benchmarks/results/sm90)."""
    if device.type != "cuda":
        return 3
    return torch.cuda.get_device_properties(device).multi_processor_count * (3 if head_dim > 64 else 6)
