"""Cases for the Triton kernels, each a function. test_triton.py runs them in a process of their own, because Triton
reads TRITON_INTERPRET when it is imported: `python -m tests.lora_kernels.triton_cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lora_kernels import (
    AdapterPool,
    BatchMetadata,
    LoraPair,
    PoolSpec,
    SiteSpec,
    batch,
    lora_apply,
    lora_write,
    reference,
)
from lora_kernels.ops import shrink
from lora_kernels.ops.tuning import plan_for
from lora_kernels.training import lora_embed
from tests.lora_kernels.factories import (
    activations,
    assert_near,
    dense_delta,
    make_adapter,
    mixed_rank_pool,
    one_site,
    requests_for,
)

BF16 = torch.bfloat16


@contextmanager
def batch_limits(decode_rows: int, group_rows: int, one_plane_rows: int) -> Iterator[None]:
    """Set where tiles of 64 rows, planes of groups and a single plane begin, to sizes an interpreter can do."""
    before = batch.MAX_DECODE_ROWS, shrink.MIN_ROWS_OF_GROUPS, shrink.MIN_ROWS_OF_ONE_PLANE
    batch.MAX_DECODE_ROWS, shrink.MIN_ROWS_OF_GROUPS, shrink.MIN_ROWS_OF_ONE_PLANE = (
        decode_rows,
        group_rows,
        one_plane_rows,
    )
    try:
        yield
    finally:
        batch.MAX_DECODE_ROWS, shrink.MIN_ROWS_OF_GROUPS, shrink.MIN_ROWS_OF_ONE_PLANE = before


def chunks_groups_and_totals_have_the_same_bits() -> None:
    """One plane per chunk, per group or in all; tiles of 16 rows and of 64."""
    pool, _ = mixed_rank_pool(one_site(2304, (64,), max_rank=64), BF16, "triton", ranks=(4, 24))
    results = []
    for limits in ((512, 64, 4096), (512, 0, 4096), (0, 0, 4096), (0, 0, 0)):
        with batch_limits(*limits):
            meta = BatchMetadata.build([1, -1, 0], [18, 1, 2], pool)
            y, x = activations(meta, BF16)
            planes = shrink.planes_for(plan_for(pool.site("site")).config, meta.rows)
            results.append((planes, meta.tile_rows, lora_apply(y, x, "site", 0, meta)))
    assert [(planes, rows) for planes, rows, _ in results] == [(8, 16), (2, 16), (2, 64), (1, 64)]
    y, x = activations(meta, BF16)
    assert_near(results[0][2], reference.lora_apply(y, x, "site", 0, meta), BF16)
    assert torch.equal(results[0][2], results[1][2]) and torch.equal(results[2][2], results[3][2])
    # The interpreter's matmul is BLAS, which may add in another order for a wider tile; tensor cores do not.
    assert_near(results[0][2], results[2][2], BF16)


def ten_ranks_in_one_batch() -> None:
    """All ranks from 1 to 256 together; run to run; rows alone."""
    pool, _ = mixed_rank_pool(one_site(80, (64, 33, 16)), BF16, "triton")
    meta = BatchMetadata.build([*range(10), -1], [2, 1] * 5 + [1], pool)
    y, x = activations(meta, BF16)
    before = y.clone()
    expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
    assert_near(lora_apply(y, x, "site", 0, meta), expected, BF16)
    assert torch.equal(lora_apply(before.clone(), x, "site", 0, meta), y)
    for row, slot in list(enumerate(meta.row_slots.tolist()))[::5]:
        alone = before[row : row + 1].clone()
        lora_apply(alone, x[row : row + 1], "site", 0, BatchMetadata.build([slot], [1], pool))
        assert torch.equal(alone[0], y[row])


def an_embedding() -> None:
    """A column of A looked up is A times a one-hot row."""
    for dtype in (torch.float32, BF16):
        pool, _ = mixed_rank_pool(one_site(90, (64,)), dtype, "triton", ranks=(8, 40))
        meta = BatchMetadata.build([1, -1, 0], [17, 2, 1], pool)
        y, _ = activations(meta, dtype)
        for token_dtype in (torch.int64, torch.int32):
            tokens = (torch.arange(meta.rows, dtype=token_dtype) * 37) % 90
            before, ours = y.clone(), y.clone()
            one_hot = torch.nn.functional.one_hot(tokens.long(), 90).to(dtype)
            expected = reference.lora_apply(y.clone(), one_hot, "site", 0, meta)
            lora_embed(ours, tokens, "site", meta)
            assert_near(ours, expected, dtype)
            assert torch.equal(ours[meta.row_slots == -1], before[meta.row_slots == -1])


def pages_of_fp8() -> None:
    """e4m3 pages with a scale per rank, near what the pool's own weights say, in one plane and in several."""
    for dtype, k in ((torch.float32, 80), (torch.float16, 80), (BF16, 576)):
        pool, _ = mixed_rank_pool(one_site(k, (64, 33, 16)), torch.float8_e4m3fn, "triton", ranks=(8, 40))
        meta = BatchMetadata.build([1, -1, 0], [17, 2, 1], pool)
        y, x = activations(meta, dtype)
        expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
        before = y.clone()
        assert_near(lora_apply(y, x, "site", 0, meta), expected, dtype)
        with batch_limits(0, 0, 0):
            meta = BatchMetadata.build([1, -1, 0], [17, 2, 1], pool)
            assert_near(lora_apply(before, x, "site", 0, meta), expected, dtype)


def partial_targets_and_first_write() -> None:
    """A site that an adapter does not touch: rows keep their bits, or become 0 when y is written first."""
    spec = PoolSpec((SiteSpec("site", 64, (32, 20)), SiteSpec("other", 48, (32,))), num_layers=2)
    pool = AdapterPool(spec, 8, 3, BF16, backend="triton")
    whole = make_adapter(spec, 12)
    pool.load(0, whole)
    pool.load(1, {key: pair for key, pair in whole.items() if key[1] == "other" and key[0] == 1})
    pool.load(2, {})
    meta = BatchMetadata.build([1, 0, -1, 2], [2, 3, 1, 2], pool)
    for layer in (0, 1):
        y, x = activations(meta, BF16)
        before, expected = y.clone(), reference.lora_apply(y.clone(), x, "site", layer, meta)
        assert_near(lora_apply(y, x, "site", layer, meta), expected, BF16)
        untouched = [0, 1, 5, 6, 7]
        assert torch.equal(y[untouched], before[untouched])
        written = torch.full_like(before, torch.nan)
        lora_write(written, x, "site", layer, meta)
        assert_near(written, reference.lora_apply(torch.zeros_like(before), x, "site", layer, meta), BF16)
        assert not written[untouched].any()


def blends_equal_the_dense_sum() -> None:
    """Pages of two adapters under one slot, each page with its own factor; K in one chunk and in two."""
    for k in (80, 576):
        spec = one_site(k, (48, 20), max_rank=64)
        pool = AdapterPool(spec, 8, 3, torch.float32, backend="triton")
        parts = [make_adapter(spec, 20, seed=1, scale=0.5), make_adapter(spec, 8, seed=2, scale=2.0)]
        for slot, tensors in enumerate(parts):
            pool.load(slot, tensors)
        pool.blend(2, [(0, 0.7), (1, -0.3)])
        meta = BatchMetadata.build([2, 0], [3, 1], pool)
        y, x = activations(meta, torch.float32)
        expected = y.double()
        expected[:3] += 0.7 * dense_delta(spec, parts[0], x[:3]) - 0.3 * dense_delta(spec, parts[1], x[:3])
        expected[3:] += dense_delta(spec, parts[0], x[3:])
        assert_near(lora_apply(y, x, "site", 0, meta), expected.float(), torch.float32)


def pages_used_again_after_eviction() -> None:
    """A shorter adapter on a longer one's pages."""
    spec = one_site(80, (48,), max_rank=64)
    pool = AdapterPool(spec, 4, 2, torch.float32, backend="triton")
    pool.load(0, make_adapter(spec, 64, seed=1))
    pool.evict(0)
    tensors = make_adapter(spec, 5, seed=2)
    pool.load(1, tensors)
    meta = BatchMetadata.build([1], [3], pool)
    y, x = activations(meta, torch.float32)
    pair: LoraPair = tensors[(0, "site", 0)]
    expected = y + pair.scale * x @ pair.a.T @ pair.b.T
    assert_near(lora_apply(y, x, "site", 0, meta), expected, torch.float32)


def rows_that_lie_far_apart() -> None:
    """Strides, not widths, say where a row of x or y is; columns that are not adjacent work too."""
    pool, _ = mixed_rank_pool(one_site(64, (32,)), BF16, "triton", ranks=(4, 12))
    meta = BatchMetadata.build(*requests_for(17, "zipf", 2), pool)
    y, x = activations(meta, BF16)
    expected = lora_apply(y.clone(), x, "site", 0, meta)
    wide_x = torch.full((17, 200), torch.nan, dtype=BF16)
    wide_x[:, 100:164] = x
    assert torch.equal(lora_apply(y.clone(), wide_x[:, 100:164], "site", 0, meta), expected)
    turned = y.clone().T.contiguous().T
    assert torch.equal(lora_apply(turned, x.T.contiguous().T, "site", 0, meta), expected)


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        chunks_groups_and_totals_have_the_same_bits,
        ten_ranks_in_one_batch,
        an_embedding,
        pages_of_fp8,
        partial_targets_and_first_write,
        blends_equal_the_dense_sum,
        pages_used_again_after_eviction,
        rows_that_lie_far_apart,
    )
}

if __name__ == "__main__":
    for name, case in CASES.items():
        try:
            case()
        except Exception as error:
            error.add_note(f"in {name}")
            raise
