"""The matrix of the kernels' design in pairs, promises checked in each case. Run like triton_cases.py.

With the argument `few`: three cases, one for each promise that cases check in turn, and an embedding.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from lora_kernels import (
    AdapterPool,
    BatchMetadata,
    MetadataBuffers,
    lora_apply,
    lora_expand,
    lora_shrink,
    lora_write,
    reference,
)
from lora_kernels.ops import triton_path
from tests.lora_kernels.factories import RANKS, activations, assert_near, mixed_rank_pool, one_site, requests_for
from tests.lora_kernels.pairwise import Case, pairwise
from tests.lora_kernels.triton_cases import an_embedding

FACTORS: dict[str, tuple[object, ...]] = {
    "rank": RANKS,
    "tokens": (0, 1, 7, 15, 16, 17, 33, 129),
    "distinct": ("none", "one", "each", "zipf"),
    "k": (64, 80, 576, 4096),
    "slices": ((96,), (64, 64), (64, 33, 16)),
    "dtype": (torch.float16, torch.bfloat16, torch.float32),
    "columns": ("strided", "adjacent"),
    "buffers": ("exact", "static"),
}


def affordable(case: Case) -> bool:
    """The interpreter needs seconds for many pages of a wide site: K = 4096 goes with ranks up to 64, or few rows."""
    return not (case.get("k") == 4096 and (case.get("rank") in (128, 256) or case.get("tokens") in (33, 129)))


CASES: list[dict[str, Any]] = [
    *pairwise(FACTORS, affordable),
    {
        "rank": 128,
        "tokens": 1,
        "distinct": "one",
        "k": 4096,
        "slices": (96,),
        "dtype": torch.bfloat16,
        "columns": "strided",
        "buffers": "static",
    },
    {
        "rank": 16,
        "tokens": 129,
        "distinct": "zipf",
        "k": 4096,
        "slices": (96,),
        "dtype": torch.bfloat16,
        "columns": "strided",
        "buffers": "exact",
    },
]


# In the order of what `check_case` looks at: a row alone, the halves, the first write.
FEW: list[dict[str, Any]] = [
    CASES[-2] | {"k": 576, "rank": 40},
    CASES[-1] | {"k": 80, "tokens": 17, "slices": (64, 33, 16), "dtype": torch.float32, "buffers": "static"},
    CASES[-1] | {"k": 64, "tokens": 15, "slices": (64, 64), "columns": "adjacent"},
]


@functools.cache
def pool_for(k: int, slices: tuple[int, ...], dtype: torch.dtype, ranks: tuple[int, ...]) -> AdapterPool:
    pool, _ = mixed_rank_pool(one_site(k, slices), dtype, "triton", ranks)
    return pool


def check_case(case: dict[str, Any], index: int) -> None:
    """Apply against the reference; base rows and surroundings; in turn a row alone, the halves, the first write."""
    place = RANKS.index(case["rank"])
    # Two others, then the rank of the case: a batch of one adapter takes the last slot.
    ranks = (16, RANKS[place - 2] if place > 1 else 12, RANKS[place])
    pool = pool_for(case["k"], case["slices"], case["dtype"], ranks)
    out = MetadataBuffers(160, 4) if case["buffers"] == "static" else None
    meta = BatchMetadata.build(*requests_for(case["tokens"], case["distinct"], len(ranks)), pool, out)
    y, x = activations(meta, case["dtype"])
    if case["columns"] == "adjacent":
        y = y.contiguous()
    before = y.clone()
    expected = reference.lora_apply(before.clone(), x, "site", 0, meta)

    lora_apply(y, x, "site", 0, meta)

    assert_near(y, expected, case["dtype"])
    base = meta.row_slots == -1
    assert torch.equal(y[base], before[base])
    if y._base is not None:
        assert y._base[:, :3].isnan().all() and y._base[:, 3 + y.shape[1] :].isnan().all()
    if index % 3 == 0 and meta.rows:
        alone = before[-1:].clone()
        last = BatchMetadata.build([int(meta.row_slots[-1])], [1], pool)
        assert torch.equal(lora_apply(alone, x[-1:], "site", 0, last), y[-1:])
    if index % 3 == 1:
        halves = before.clone()
        v = torch.full((len(case["slices"]), meta.rows, meta.max_pages * 16 + 16), torch.nan)
        lora_expand(lora_shrink(x, "site", 0, meta, v), "site", 0, meta, halves)
        assert torch.equal(halves, y)
    if index % 3 == 2 and meta.segments:
        written = torch.full_like(before, torch.nan)
        lora_write(written, x, "site", 0, meta)
        assert_near(written, reference.lora_apply(torch.zeros_like(before), x, "site", 0, meta), case["dtype"])
        assert not written[base].any()


def poison_scratch() -> None:
    """Scratch begins as NaN: whoever reads what shrink did not write shows it."""
    plain = triton_path.new_planes
    triton_path.new_planes = lambda *arguments: plain(*arguments).fill_(torch.nan)


if __name__ == "__main__":
    poison_scratch()
    few = sys.argv[1:] == ["few"]
    if few:
        an_embedding()
    for number, one in enumerate(FEW if few else CASES):
        try:
            check_case(one, number)
        except Exception as error:
            error.add_note(f"in the case {one}")
            raise
