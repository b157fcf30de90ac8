"""The steps of expand's kernel: v of some rows, and the columns of y and B that stream past it."""

from __future__ import annotations

from lora_kernels.ops.tile import dot
from lora_kernels.ops.triton_or_none import tl, triton


@triton.jit
def sum_planes(part, plane_stride, mask, PLANES: tl.constexpr, INNER: tl.constexpr, TOGETHER: tl.constexpr):
    """Return the sum of v's planes at `part`, INNER to a group, in the order shrink would have added.

    TOGETHER: all planes are on their way at once; else one group at a time, in fewer registers.
    """
    total = tl.zeros(part.shape, tl.float32)
    if TOGETHER:
        for outer in tl.static_range(0, PLANES, INNER):
            total += sum_group(part + outer * plane_stride, plane_stride, mask, INNER)
    else:
        for outer in range(0, PLANES, INNER):
            total += sum_group(part + outer * plane_stride, plane_stride, mask, INNER)
    return total


@triton.jit
def sum_group(part, plane_stride, mask, INNER: tl.constexpr):
    """Return the sum of INNER planes of v, the first of them at `part`."""
    group = tl.zeros(part.shape, tl.float32)
    for inner in tl.static_range(0, INNER):
        group += tl.load(part + inner * plane_stride, mask=mask, other=0.0)
    return group


@triton.jit
def load_v(
    v,
    row,
    used,
    number,
    slot,
    column_slice,
    site,
    tables,
    SLICES: tl.constexpr,
    PAGE: tl.constexpr,
    PLANES: tl.constexpr,
    INNER: tl.constexpr,
    TOGETHER: tl.constexpr,
    FP8: tl.constexpr,
):
    """Return v of these rows at a slot's page of that number, float32 [rows, PAGE], and the page's id."""
    rank = tl.arange(0, PAGE)
    listed = slot * tables.max_pages + number
    page = tl.load(tables.page_table + listed).to(tl.int64)
    part = v.data + column_slice.to(tl.int64) * v.slice_stride + number * PAGE
    part = part + row[:, None] * v.row_stride + rank[None, :]
    total = sum_planes(part, v.plane_stride, used[:, None], PLANES, INNER, TOGETHER)
    if PLANES > 1:
        total *= tl.load(tables.page_scales + listed)
        if FP8:
            total *= tl.load(site.rank_scales + (page * SLICES + column_slice) * PAGE + rank)[None, :]
    return total, page


@triton.jit
def load_b(site, page, column, end, n_size, PAGE: tl.constexpr):
    """Return B of one page at `column`, [PAGE, columns]; columns from `end` on are 0."""
    place = (page * PAGE + tl.arange(0, PAGE))[:, None] * n_size + column[None, :]
    return tl.load(site.weights + place, mask=(column < end)[None, :], other=0.0)


@triton.jit
def write_block(acc, rows_of_y, used, column, end, ADD: tl.constexpr):
    """Write y = acc, or y += acc rounded once, in the rows used and the columns before `end`."""
    mask = used[:, None] & (column < end)[None, :]
    out = rows_of_y[:, None] + column[None, :]
    if ADD:
        acc += tl.load(out, mask=mask, other=0.0).to(tl.float32)
    tl.store(out, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def walk_one_page(
    part,
    page,
    rows_of_y,
    used,
    first,
    last,
    end,
    end_of_b,
    site,
    n_size,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    ADD: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Write y from column `first` to `last`: v, `part`, stays in registers; B and y pass through STAGES buffers."""
    for start in tl.range(first, last, BLOCK_N, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK_N)
        # Exact where B has 8 bits: every e4m3 number is one of the wider type.
        w = load_b(site, page, column, end_of_b, n_size, PAGE).to(part.dtype)
        acc = dot(part, w, tl.zeros((part.shape[0], BLOCK_N), tl.float32), UPCAST)
        write_block(acc, rows_of_y, used, column, end, ADD)


@triton.jit
def walk_pages(
    v,
    row,
    used,
    slot,
    pages,
    column_slice,
    rows_of_y,
    first,
    last,
    end,
    site,
    tables,
    n_size,
    SLICES: tl.constexpr,
    PAGE: tl.constexpr,
    PLANES: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ADD: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Do the same for a slot of many pages, added in their order: v is read again for every block of columns."""
    like = rows_of_y.dtype.element_ty
    for start in range(first, last, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        acc = tl.zeros((row.shape[0], BLOCK_N), tl.float32)
        for number in range(0, pages):
            part, page = load_v(
                v, row, used, number, slot, column_slice, site, tables, SLICES, PAGE, PLANES, INNER, False, FP8
            )
            acc = dot(part.to(like), load_b(site, page, column, end, n_size, PAGE).to(like), acc, UPCAST)
        write_block(acc, rows_of_y, used, column, end, ADD)


@triton.jit
def expand_run(
    y,
    y_stride,
    first,
    last,
    end,
    column_slice,
    slot,
    row,
    used,
    site,
    tables,
    v,
    n_size,
    SLICES: tl.constexpr,
    PAGE: tl.constexpr,
    MANY: tl.constexpr,
    PLANES: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    ADD: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Write y of some rows of one slot in the columns from `first` to `last`, all in one slice that ends at `end`.

    A slot's pages alone choose the way: one, or (MANY) more.
    """
    pages = tl.load(tables.live + slot)
    rows_of_y = y + row * y_stride
    if MANY and pages > 1:
        walk_pages(
            v,
            row,
            used,
            slot,
            pages,
            column_slice,
            rows_of_y,
            first,
            last,
            end,
            site,
            tables,
            n_size,
            SLICES,
            PAGE,
            PLANES,
            INNER,
            BLOCK_N,
            ADD,
            FP8,
            UPCAST,
        )
    elif pages > 0 or not ADD:
        used_v = used & (tl.zeros(used.shape, tl.int32) < pages)
        part, page = load_v(v, row, used_v, 0, slot, column_slice, site, tables, SLICES, PAGE, PLANES, INNER, True, FP8)
        # A slot without pages lists another site's, whose B is not read here.
        end_of_b = tl.where(pages > 0, end, 0)
        part = part.to(y.dtype.element_ty)
        walk_one_page(
            part, page, rows_of_y, used, first, last, end, end_of_b, site, n_size, PAGE, BLOCK_N, STAGES, ADD, UPCAST
        )


@triton.jit
def prefetch_b(first, last, slot, site, tables, n_size, PAGE: tl.constexpr, LINE: tl.constexpr, LINES: tl.constexpr):
    """Ask the second-level cache for B of a slot's first page in the columns from `first` on, LINES of LINE columns."""
    page = tl.load(tables.page_table + slot * tables.max_pages).to(tl.int64)
    column = first + tl.arange(0, LINES) * LINE
    column = tl.where(column < last, column, first)
    place = site.weights + (page * PAGE + tl.arange(0, PAGE))[:, None] * n_size + column[None, :]
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [place.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def zero_base_rows(y, y_stride, batch, blocks, block_count, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write 0 into the rows of y that have no adapter."""
    t = tl.arange(0, ROWS)
    rows = tl.load(batch.counts)
    for index in range(tl.program_id(0), tl.cdiv(rows, ROWS) * block_count, tl.num_programs(0)):
        block = blocks + index % block_count * 3
        row = index // block_count * ROWS + t
        base = tl.load(batch.row_slots + row, mask=row < rows, other=0) < 0
        column = tl.load(block + 1) + tl.arange(0, BLOCK_N)
        mask = base[:, None] & (column < tl.load(block + 2))[None, :]
        out = y + row.to(tl.int64)[:, None] * y_stride + column[None, :]
        tl.store(out, tl.zeros((ROWS, BLOCK_N), y.dtype.element_ty), mask=mask)


@triton.jit
def run_at(index, stop, batch, blocks, block_count, PARTS: tl.constexpr, BLOCK_N: tl.constexpr, ALIGN: tl.constexpr):
    """Return tile, part of it, slice, first, last and end column of the run at `index`, and its blocks."""
    line = index // block_count
    block = blocks + index % block_count * 3
    first = tl.multiple_of(tl.load(block + 1), ALIGN)
    end = tl.multiple_of(tl.load(block + 2), ALIGN)
    count = tl.minimum(stop - index, tl.cdiv(end - first, BLOCK_N))
    last = tl.minimum(first + count * BLOCK_N, end)
    return batch.tiles + line // PARTS * 3, line % PARTS, tl.load(block), first, last, end, count
