"""Run by test_triton.py in a process of its own, because TRITON_INTERPRET is read when triton is imported."""

from __future__ import annotations

import sys

import torch

from lora_kernels import BatchMetadata, MetadataBuffers, lora_apply, lora_expand, lora_shrink, reference
from tests.lora_kernels.factories import activations, assert_near, mixed_rank_pool, one_site, requests_for


def check(dtype: torch.dtype) -> None:
    """Mixed ranks, unequal slices, strided y, poisoned spare pages, static buffers larger than the batch."""
    for k, slices in ((80, (96,)), (144, (64, 33, 16))):
        pool, _ = mixed_rank_pool(one_site(k, slices, max_rank=64), dtype, "triton", ranks=(1, 12, 24, 64))
        buffers = MetadataBuffers(64, 8)
        for rows, distinct in ((1, "one"), (7, "each"), (17, "one"), (33, "zipf"), (16, "none")):
            for out in (None, buffers):
                meta = BatchMetadata.build(*requests_for(rows, distinct, 4), pool, out)
                y, x = activations(meta, dtype)
                before, split = y.clone(), y.clone()
                expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
                lora_apply(y, x, "site", 0, meta)
                assert_near(y, expected, dtype)
                base = meta.row_slots == -1
                assert torch.equal(y[base], before[base])
                v = torch.full((len(slices), rows, 64), torch.nan)
                lora_expand(lora_shrink(x, "site", 0, meta, v), "site", 0, meta, split)
                assert torch.equal(split, y)
                for row, slot in enumerate(meta.row_slots.tolist()[:3]):
                    alone = before[row : row + 1].clone()
                    lora_apply(alone, x[row : row + 1], "site", 0, BatchMetadata.build([slot], [1], pool))
                    assert torch.equal(alone[0], y[row])


if __name__ == "__main__":
    check({"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[sys.argv[1]])
