/* Scheduling: rows into tiles, tiles over threads, and the choice of a kernel set. */
#include "sgmv.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Below this many multiply-adds a thread's share is worth less than waking it (2 us on two EPYC cores). */
enum { MACS_PER_THREAD = 32768 };
/* Columns of y a thread takes at once when tiles are too few: 16 KiB of float32 page, half a first-level cache. */
enum { CHUNK = 256 };
/* Ranks a thread takes at once then: what a kernel may round up to, so that two threads never meet in v. */
enum { UNIT = 8 };
/* With this many tiles a thread, each tile is done whole by one thread, with no barrier between shrink and expand. */
enum { TILES_PER_THREAD = 3 };

typedef struct {
    int32_t slot, first, rows;  /* rows of row_order from first on */
} tile_t;

typedef struct {
    int64_t slice, begin, width;
} chunk_t;

/* Rows of v: of the tile's row t, slice s begins at data + row(t) * row_stride + s * slice_stride. */
typedef struct {
    float *data;
    int64_t row_stride, slice_stride;
} v_rows;

typedef struct {
    const lk_kernels *kernels;
    const lk_site *site;
    const lk_batch *batch;
    lk_rows x, y;
} job;

/* Kernel set by activation type and weight type. */
static const lk_kernels *chosen[2][2] = {{&lk_portable, &lk_portable}, {&lk_portable, &lk_portable}};

static int supported(const char *name) {
    if (!strcmp(name, "portable")) return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx512bf16"))
        return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return 0;
}

static int use(const lk_kernels *kernels, int64_t x_dtype, int64_t dtype) {
    if (!lk_agrees(kernels, x_dtype, dtype)) return 0;
    chosen[x_dtype][dtype] = kernels;
    return 1;
}

/* Use the kernels of one instruction set ("portable", "avx2", "avx512bf16"), each only after it agreed with the
 * portable ones. 0; -1 when this processor lacks it; -2 when it disagreed. Not 0: the portable kernels are in use. */
int lk_use(const char *name) {
    int agreed = 1;
    for (int x = 0; x < 2; x++)
        for (int w = 0; w < 2; w++) chosen[x][w] = &lk_portable;
    if (!supported(name)) return -1;
#if defined(__x86_64__)
    if (strcmp(name, "portable"))
        for (int x = 0; x < 2; x++)
            for (int w = 0; w < 2; w++) agreed &= use(&lk_avx2, x, w);
    if (!strcmp(name, "avx512bf16")) agreed &= use(&lk_avx512bf16, LK_BF16, LK_BF16);
#endif
    if (agreed) return 0;
    for (int x = 0; x < 2; x++)
        for (int w = 0; w < 2; w++) chosen[x][w] = &lk_portable;
    return -2;
}

static char *row_at(const lk_rows *rows, int64_t row) {
    return rows->data + row * rows->stride * lk_element_size(rows->dtype);
}

static const int32_t *tile_order(const job *j, const tile_t *tile) { return j->batch->row_order + tile->first; }

/* Point x[] at the tile's rows as shrink wants them; packed has room for rows * padded_k floats. */
static void x_rows(const job *j, const tile_t *tile, const void **x, float *packed) {
    const lk_site *site = j->site;
    int lies_ready = site->k == site->padded_k && j->kernels->in_place[site->dtype] == j->x.dtype;
    for (int t = 0; t < tile->rows; t++) {
        const char *row = row_at(&j->x, tile_order(j, tile)[t]);
        x[t] = row;
        if (!lies_ready) {
            float *out = packed + t * site->padded_k;
            j->kernels->pack_row(row, j->x.dtype, site->k, site->padded_k, site->dtype, out);
            x[t] = out;
        }
    }
}

/* v of ranks [from, to) of one page, all slices. */
static void shrink_page(const job *j, const tile_t *tile, int64_t page, int64_t from, int64_t to, const void *const *x,
                        float *const *v, int64_t slice_stride) {
    const lk_site *site = j->site;
    int64_t at = tile->slot * site->max_pages + page;
    int64_t ranks = site->page_ranks[at] < to ? site->page_ranks[at] : to;
    if (ranks <= from) return;
    for (int64_t s = 0; s < site->slices; s++) {
        int64_t row = (site->page_table[at] * site->slices + s) * site->page_size + from;
        const char *a = (const char *)site->a + row * site->padded_k * lk_element_size(site->dtype);
        j->kernels->shrink(a, site->dtype, site->padded_k, ranks - from, x, tile->rows, site->page_scales[at], v,
                           s * slice_stride + page * site->page_size + from);
    }
}

/* y of one range of columns within a slice, all pages; b has room for the site's max_pages. */
static void expand_columns(const job *j, const tile_t *tile, const chunk_t *chunk, const float *const *v,
                           int64_t slice_stride, char *const *y, const void **b) {
    const lk_site *site = j->site;
    int64_t at = tile->slot * site->max_pages, pages = site->live[tile->slot];
    for (int64_t p = 0; p < pages; p++) {
        int64_t first = site->page_table[at + p] * site->page_size * site->n + chunk->begin;
        b[p] = (const char *)site->b + first * lk_element_size(site->dtype);
    }
    j->kernels->expand(b, site->dtype, site->n, site->page_ranks + at, pages, site->page_size, v,
                       chunk->slice * slice_stride, y, j->y.dtype, chunk->begin, tile->rows, chunk->width);
}

static void y_rows(const job *j, const tile_t *tile, char **y) {
    for (int t = 0; t < tile->rows; t++) y[t] = row_at(&j->y, tile_order(j, tile)[t]);
}

/* v[] of the tile: by place in row_order for the batch's scratch, by row id for a caller's buffer. */
static void v_pointers(const job *j, const tile_t *tile, const v_rows *v, int by_row_id, float **out) {
    for (int t = 0; t < tile->rows; t++)
        out[t] = v->data + (by_row_id ? tile_order(j, tile)[t] : tile->first + t) * v->row_stride;
}

static int64_t count_tiles(const job *j, tile_t *tiles, int64_t *macs, int64_t *most_pages) {
    const lk_site *site = j->site;
    int64_t count = 0;
    for (int64_t s = 0; s < j->batch->segments; s++) {
        int32_t slot = j->batch->segment_slots[s], end = j->batch->segment_starts[s + 1];
        int64_t pages = site->live[slot];
        if (!pages) continue;
        if (pages > *most_pages) *most_pages = pages;
        for (int32_t first = j->batch->segment_starts[s]; first < end; first += LK_TILE, count++) {
            int32_t rows = end - first < LK_TILE ? end - first : LK_TILE;
            if (tiles) tiles[count] = (tile_t){slot, first, rows};
            else *macs += rows * pages * site->page_size * (site->slices * site->k + site->n);
        }
    }
    return count;
}

static int64_t list_chunks(const lk_site *site, int64_t width, chunk_t *chunks) {
    int64_t count = 0;
    for (int64_t s = 0; s < site->slices; s++)
        for (int64_t begin = site->offsets[s]; begin < site->offsets[s + 1]; begin += width, count++) {
            int64_t rest = site->offsets[s + 1] - begin;
            if (chunks) chunks[count] = (chunk_t){s, begin, rest < width ? rest : width};
        }
    return count;
}

/* Every tile whole, tiles over threads; v and packed rows live in a thread's own scratch. */
static int run_whole_tiles(const job *j, const tile_t *tiles, int64_t count, int64_t most_pages, int threads) {
    const lk_site *site = j->site;
    int64_t ranks = most_pages * site->page_size, row_floats = site->slices * ranks;
    int failed = 0;
    (void)threads;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        const void **b = malloc((size_t)most_pages * sizeof *b);
        float *scratch = malloc((size_t)(LK_TILE * (row_floats + site->padded_k)) * sizeof(float));
        failed |= !b || !scratch;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; i++) {
            if (failed) continue;
            const void *x[LK_TILE];
            float *v[LK_TILE];
            char *y[LK_TILE];
            x_rows(j, &tiles[i], x, scratch + LK_TILE * row_floats);
            y_rows(j, &tiles[i], y);
            for (int t = 0; t < tiles[i].rows; t++) v[t] = scratch + t * row_floats;
            for (int64_t p = 0; p < site->live[tiles[i].slot]; p++)
                shrink_page(j, &tiles[i], p, 0, site->page_size, x, v, ranks);
            for (int64_t s = 0; s < site->slices; s++) {
                chunk_t slice = {s, site->offsets[s], site->offsets[s + 1] - site->offsets[s]};
                expand_columns(j, &tiles[i], &slice, (const float *const *)v, ranks, y, b);
            }
        }
        free(b);
        free(scratch);
    }
    return failed ? -1 : 0;
}

/* Few tiles: shrink by units of ranks, then expand by columns, over all threads. Either half may be left out. */
static int run_split(const job *j, const tile_t *tiles, int64_t count, int64_t most_pages, const v_rows *v,
                     int by_row_id, int shrinks, int expands, int threads) {
    const lk_site *site = j->site;
    int64_t width = threads > 1 ? CHUNK : site->n, ranks = threads > 1 ? UNIT : site->page_size;
    int64_t chunk_count = list_chunks(site, width, NULL), units = most_pages * (site->page_size / ranks);
    chunk_t *chunks = malloc((size_t)chunk_count * sizeof *chunks);
    int failed = !chunks;
    if (chunks) list_chunks(site, width, chunks);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        const void **b = malloc((size_t)most_pages * sizeof *b);
        float *packed = malloc((size_t)(LK_TILE * site->padded_k) * sizeof(float));
        const void *x[LK_TILE];
        float *rows[LK_TILE];
        char *y[LK_TILE];
        failed |= !b || !packed || !chunks;
        if (shrinks) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t unit = 0; unit < count * units; unit++) {
                const tile_t *tile = &tiles[unit / units];
                int64_t from = unit % units * ranks, page = from / site->page_size;
                if (failed || page >= site->live[tile->slot]) continue;
                from %= site->page_size;
                x_rows(j, tile, x, packed);
                v_pointers(j, tile, v, by_row_id, rows);
                shrink_page(j, tile, page, from, from + ranks, x, rows, v->slice_stride);
            }
        }
        if (expands) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t unit = 0; unit < count * chunk_count; unit++) {
                const tile_t *tile = &tiles[unit / chunk_count];
                if (failed) continue;
                v_pointers(j, tile, v, by_row_id, rows);
                y_rows(j, tile, y);
                expand_columns(j, tile, &chunks[unit % chunk_count], (const float *const *)rows, v->slice_stride, y, b);
            }
        }
        free(b);
        free(packed);
    }
    free(chunks);
    return failed ? -1 : 0;
}

static int run(const job *j, const v_rows *v, int shrinks, int expands, int threads) {
    int64_t macs = 0, most_pages = 0;
    int64_t count = count_tiles(j, NULL, &macs, &most_pages);
    if (!count) return 0;
    tile_t *tiles = malloc((size_t)count * sizeof *tiles);
    if (!tiles) return -1;
    count_tiles(j, tiles, &macs, &most_pages);
    if (threads > 1 + macs / MACS_PER_THREAD) threads = (int)(1 + macs / MACS_PER_THREAD);
    int failed;
    if (v) {
        failed = run_split(j, tiles, count, most_pages, v, 1, shrinks, expands, threads);
    } else if (threads == 1 || count >= (int64_t)threads * TILES_PER_THREAD) {
        failed = run_whole_tiles(j, tiles, count, most_pages, threads);
    } else {
        int64_t ranks = most_pages * j->site->page_size;
        int32_t rows = j->batch->segment_starts[j->batch->segments];
        v_rows scratch = {NULL, j->site->slices * ranks, ranks};
        scratch.data = malloc((size_t)(rows * scratch.row_stride) * sizeof(float));
        failed = scratch.data ? run_split(j, tiles, count, most_pages, &scratch, 0, 1, 1, threads) : -1;
        free(scratch.data);
    }
    free(tiles);
    return failed;
}

/* y += scale * (x A^T) B^T for every row of the batch. 0, or -1 when memory is short: y may then be part written. */
int lk_apply(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype, void *x,
             int64_t x_stride, int64_t x_dtype, int threads) {
    job j = {chosen[x_dtype][site->dtype], site, batch, {x, x_stride, x_dtype}, {y, y_stride, y_dtype}};
    return run(&j, NULL, 1, 1, threads);
}

/* v[s * slice_stride + row * row_stride + r] = scale * <x[row], a_s[r]>, for the ranks a row's adapter has. */
int lk_shrink(const lk_site *site, const lk_batch *batch, void *x, int64_t x_stride, int64_t x_dtype, float *v,
              int64_t row_stride, int64_t slice_stride, int threads) {
    job j = {chosen[x_dtype][site->dtype], site, batch, {x, x_stride, x_dtype}, {NULL, 0, LK_F32}};
    v_rows rows = {v, row_stride, slice_stride};
    return run(&j, &rows, 1, 0, threads);
}

/* y += v B^T, v as lk_shrink leaves it. */
int lk_expand(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype, float *v,
              int64_t row_stride, int64_t slice_stride, int threads) {
    job j = {chosen[y_dtype][site->dtype], site, batch, {NULL, 0, LK_F32}, {y, y_stride, y_dtype}};
    v_rows rows = {v, row_stride, slice_stride};
    return run(&j, &rows, 0, 1, threads);
}
