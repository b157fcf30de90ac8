/* Scheduling: every thread of a team walks the same list of work and does its own share of it.
 *
 * Two phases, shrink and expand, a barrier after each. Work is cut into granules of at most LK_TILE rows of one adapter
 * by UNIT ranks (shrink) or CHUNK columns (expand), and each thread takes an equal, contiguous share of the total cost.
 * Nothing is allocated here, and no granule's arithmetic depends on whose share it is in.
 */
#include "sgmv.h"

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

/* Below this many multiply-adds a thread's share is worth less than waking it (2 us on two EPYC cores). */
enum { MACS_PER_THREAD = 32768 };
/* Columns of y in one granule: 16 KiB of a float32 page of 16 ranks, half a first-level cache. */
enum { CHUNK = 256 };
/* Ranks in one granule: what a kernel may round up to, so that two threads never meet in v. */
enum { UNIT = 8 };
/* Reading weights costs a granule as much as computing this many rows (float32 weights in the last-level cache). */
enum { WEIGHT_ROWS = 2 };
/* Scratch parts begin on cache lines: threads share none. */
enum { LINE = 64 };

/* Rows of one adapter. */
typedef struct {
    const int32_t *order;  /* [rows], row ids */
    int64_t first, rows;   /* place of the first one in row_order */
    int64_t at, pages;     /* the slot's first page in the tables, and how many of them the site uses */
} tile_t;

/* Rows of v: of the tile's row t, slice s begins at data + row(t) * row_stride + s * slice_stride. */
typedef struct {
    float *data;
    int64_t row_stride, slice_stride;
    int by_row_id;  /* row(t) is a row id (a caller's buffer), else a place in row_order */
} v_rows;

typedef struct {
    const lk_kernels *kernels;
    const lk_site *site;
    const lk_batch *batch;
    lk_rows x, y;
    v_rows v;
} job;

/* One thread's part [begin, end) of a phase's cost, and how far the walk has come. */
typedef struct {
    int64_t at, begin, end;
} share;

/* One thread's own memory. */
typedef struct {
    const void **b;  /* [max_pages] */
    char *packed;    /* [LK_TILE, padded_k] floats */
    int64_t tile;    /* place in row_order of the tile that packed holds, or -1 */
} thread_scratch;

static int takes(share *s, int64_t cost) {
    int64_t at = s->at;
    s->at += cost;
    return at >= s->begin && at < s->end;
}

static int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t whole_lines(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static char *row_at(const lk_rows *rows, int64_t row) {
    return rows->data + row * rows->stride * lk_element_size(rows->dtype);
}

static tile_t segment_at(const job *j, int64_t segment) {
    int64_t first = j->batch->segment_starts[segment], slot = j->batch->segment_slots[segment];
    return (tile_t){j->batch->row_order + first, first, j->batch->segment_starts[segment + 1] - first,
                    slot * j->site->max_pages, j->site->live[slot]};
}

static tile_t tile_of(const tile_t *segment, int64_t offset) {
    return (tile_t){segment->order + offset, segment->first + offset, minimum(LK_TILE, segment->rows - offset),
                    segment->at, segment->pages};
}

/* Ranks of all the pages a segment uses, each page rounded up to whole units. */
static int64_t segment_ranks(const job *j, const tile_t *segment) {
    int64_t ranks = 0;
    for (int64_t p = 0; p < segment->pages; p++)
        ranks += (j->site->page_ranks[segment->at + p] + UNIT - 1) / UNIT * UNIT;
    return ranks;
}

/* Cost of a segment per rank and element of k (shrink) or column (expand). */
static int64_t segment_rows(const tile_t *segment) {
    return segment->rows + (segment->rows + LK_TILE - 1) / LK_TILE * WEIGHT_ROWS;
}

/* Rows times ranks of the batch, weights included: what each phase's cost is a multiple of. */
static int64_t batch_cost(const job *j) {
    int64_t cost = 0;
    for (int64_t s = 0; s < j->batch->segments; s++) {
        tile_t segment = segment_at(j, s);
        cost += segment_rows(&segment) * segment_ranks(j, &segment);
    }
    return cost;
}

static int64_t most_pages(const job *j) {
    int64_t most = 0;
    for (int64_t s = 0; s < j->batch->segments; s++) {
        int64_t pages = j->site->live[j->batch->segment_slots[s]];
        if (pages > most) most = pages;
    }
    return most;
}

/* Point x[] at the tile's rows as shrink wants them, packing them unless that was done last. */
static void x_rows(const job *j, const tile_t *tile, const void **x, thread_scratch *mine) {
    const lk_site *site = j->site;
    int lies_ready = site->k == site->padded_k && j->kernels->in_place[site->dtype] == j->x.dtype;
    int64_t row_bytes = site->padded_k * (int64_t)sizeof(float);
    for (int64_t t = 0; t < tile->rows; t++) {
        const char *row = row_at(&j->x, tile->order[t]);
        x[t] = lies_ready ? row : mine->packed + t * row_bytes;
        if (!lies_ready && mine->tile != tile->first)
            j->kernels->pack_row(row, j->x.dtype, site->k, site->padded_k, site->dtype, mine->packed + t * row_bytes);
    }
    mine->tile = tile->first;
}

static void v_pointers(const job *j, const tile_t *tile, float **out) {
    for (int64_t t = 0; t < tile->rows; t++)
        out[t] = j->v.data + (j->v.by_row_id ? tile->order[t] : tile->first + t) * j->v.row_stride;
}

static void shrink_tile(const job *j, const tile_t *tile, share *s, thread_scratch *mine) {
    const lk_site *site = j->site;
    const void *x[LK_TILE];
    float *v[LK_TILE];
    int ready = 0;
    for (int64_t p = 0; p < tile->pages; p++) {
        int64_t at = tile->at + p;
        for (int64_t slice = 0; slice < site->slices; slice++)
            for (int64_t r = 0; r < site->page_ranks[at]; r += UNIT) {
                if (!takes(s, (tile->rows + WEIGHT_ROWS) * UNIT * site->k)) continue;
                if (!ready) {
                    x_rows(j, tile, x, mine);
                    v_pointers(j, tile, v);
                    ready = 1;
                }
                int64_t row = (site->page_table[at] * site->slices + slice) * site->page_size + r;
                j->kernels->shrink((const char *)site->a + row * site->padded_k * lk_element_size(site->dtype),
                                   site->dtype, site->padded_k, minimum(UNIT, site->page_ranks[at] - r), x,
                                   (int)tile->rows, site->page_scales[at], v,
                                   slice * j->v.slice_stride + p * site->page_size + r);
            }
    }
}

static void expand_tile(const job *j, const tile_t *tile, int64_t ranks, share *s, thread_scratch *mine) {
    const lk_site *site = j->site;
    float *v[LK_TILE];
    char *y[LK_TILE];
    int ready = 0;
    for (int64_t slice = 0; slice < site->slices; slice++)
        for (int64_t c = site->offsets[slice], width; c < site->offsets[slice + 1]; c += width) {
            width = minimum(CHUNK, site->offsets[slice + 1] - c);
            if (!takes(s, (tile->rows + WEIGHT_ROWS) * ranks * width)) continue;
            if (!ready) {
                v_pointers(j, tile, v);
                for (int64_t t = 0; t < tile->rows; t++) y[t] = row_at(&j->y, tile->order[t]);
                ready = 1;
            }
            for (int64_t p = 0; p < tile->pages; p++) {
                int64_t first = site->page_table[tile->at + p] * site->page_size * site->n + c;
                mine->b[p] = (const char *)site->b + first * lk_element_size(site->dtype);
            }
            j->kernels->expand(mine->b, site->dtype, site->n, site->page_ranks + tile->at, tile->pages, site->page_size,
                               (const float *const *)v, slice * j->v.slice_stride, y, j->y.dtype, c, (int)tile->rows,
                               width);
        }
}

enum { SHRINK, EXPAND };

/* This thread's share of one phase. */
static void run_phase(const job *j, int phase, thread_scratch *mine) {
    int64_t per_rank = phase == SHRINK ? j->site->slices * j->site->k : j->site->n;
    int64_t total = batch_cost(j) * per_rank, thread = omp_get_thread_num(), threads = omp_get_num_threads();
    share s = {0, total / threads * thread, thread + 1 == threads ? total : total / threads * (thread + 1)};
    mine->tile = -1;
    for (int64_t i = 0; i < j->batch->segments && s.at < s.end; i++) {
        tile_t segment = segment_at(j, i);
        int64_t ranks = segment_ranks(j, &segment);
        for (int64_t offset = 0; offset < segment.rows && s.at < s.end; offset += LK_TILE) {
            tile_t tile = tile_of(&segment, offset);
            int64_t cost = (tile.rows + WEIGHT_ROWS) * ranks * per_rank;
            if (s.at + cost <= s.begin)
                s.at += cost;
            else if (phase == SHRINK)
                shrink_tile(j, &tile, &s, mine);
            else
                expand_tile(j, &tile, ranks, &s, mine);
        }
    }
}

static int64_t thread_bytes(const lk_site *site) {
    return whole_lines(site->max_pages * (int64_t)sizeof(void *)) +
           whole_lines(LK_TILE * site->padded_k * (int64_t)sizeof(float));
}

static thread_scratch thread_part(const lk_site *site, char *scratch) {
    char *part = scratch + omp_get_thread_num() * thread_bytes(site);
    return (thread_scratch){(const void **)part, part + whole_lines(site->max_pages * (int64_t)sizeof(void *)), -1};
}

static char *on_a_line(void *scratch) { return (char *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE); }

int64_t lk_scratch_bytes(const lk_site *site, int64_t rows, int threads) {
    int64_t v = rows * site->slices * site->max_pages * site->page_size * (int64_t)sizeof(float);
    return LINE + threads * thread_bytes(site) + whole_lines(v);
}

void lk_apply_team(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype,
                   const void *x, int64_t x_stride, int64_t x_dtype, void *scratch) {
    char *parts = on_a_line(scratch);
    thread_scratch mine = thread_part(site, parts);
    job j = {lk_chosen(x_dtype, site->dtype), site, batch, {(char *)x, x_stride, x_dtype}, {y, y_stride, y_dtype},
             {(float *)(parts + omp_get_num_threads() * thread_bytes(site)), 0, 0, 0}};
    j.v.slice_stride = most_pages(&j) * site->page_size;
    j.v.row_stride = site->slices * j.v.slice_stride;
    run_phase(&j, SHRINK, &mine);
#pragma omp barrier
    run_phase(&j, EXPAND, &mine);
#pragma omp barrier
}

static int worthwhile_threads(const job *j, int shrinks, int expands, int threads) {
    int64_t per_rank = shrinks * j->site->slices * j->site->k + expands * j->site->n;
    return (int)minimum(threads, 1 + batch_cost(j) * per_rank / MACS_PER_THREAD);
}

int lk_apply(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype, const void *x,
             int64_t x_stride, int64_t x_dtype, int threads) {
    job j = {NULL, site, batch, {NULL, 0, 0}, {NULL, 0, 0}, {NULL, 0, 0, 0}};
    threads = worthwhile_threads(&j, 1, 1, threads);
    void *scratch = malloc((size_t)lk_scratch_bytes(site, batch->segment_starts[batch->segments], threads));
    if (!scratch) return -1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    lk_apply_team(site, batch, y, y_stride, y_dtype, x, x_stride, x_dtype, scratch);
    free(scratch);
    return 0;
}

/* One phase alone, v in the caller's memory. */
static int run_alone(const job *j, int phase, int threads) {
    threads = worthwhile_threads(j, phase == SHRINK, phase == EXPAND, threads);
    void *scratch = malloc((size_t)lk_scratch_bytes(j->site, 0, threads));
    if (!scratch) return -1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        thread_scratch mine = thread_part(j->site, on_a_line(scratch));
        run_phase(j, phase, &mine);
    }
    free(scratch);
    return 0;
}

int lk_shrink(const lk_site *site, const lk_batch *batch, const void *x, int64_t x_stride, int64_t x_dtype, float *v,
              int64_t row_stride, int64_t slice_stride, int threads) {
    job j = {lk_chosen(x_dtype, site->dtype), site, batch, {(char *)x, x_stride, x_dtype}, {NULL, 0, LK_F32},
             {v, row_stride, slice_stride, 1}};
    return run_alone(&j, SHRINK, threads);
}

int lk_expand(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype, float *v,
              int64_t row_stride, int64_t slice_stride, int threads) {
    job j = {lk_chosen(y_dtype, site->dtype), site, batch, {NULL, 0, LK_F32}, {y, y_stride, y_dtype},
             {v, row_stride, slice_stride, 1}};
    return run_alone(&j, EXPAND, threads);
}
