/* Scheduling: every thread of a team walks the same list of work and does its own share of it.
 *
 * Two phases, shrink and expand, a barrier after each. Work is cut into granules: some rows of one adapter by LK_UNIT
 * ranks (shrink) or LK_CHUNK columns (expand), and each thread takes an equal, contiguous share of the total cost.
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

/* Below this cost (multiply-adds, weights included) a thread's share is worth less than waking it: 2 us. */
enum { COST_PER_THREAD = 65536 };
/* Elements of k that one pass over a tile's rows takes, so that what it reads again stays in the first two caches:
 * shorter rows are taken whole. */
enum { K_BLOCK = 512, WHOLE_K = 1536 };
/* Units whose running sums are kept from one block of k to the next: 64 ranks. */
enum { MOST_UNITS = 8 };
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
    char *packed;    /* [LK_SHRINK_ROWS, padded_k] floats */
    float *sums;     /* [MOST_UNITS, LK_SHRINK_ROWS, LK_UNIT, LK_LANES] */
    float *panel;    /* [max_pages, page_size, LK_CHUNK] */
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

static tile_t tile_of(const tile_t *segment, int64_t offset, int64_t most_rows) {
    return (tile_t){segment->order + offset, segment->first + offset, minimum(most_rows, segment->rows - offset),
                    segment->at, segment->pages};
}

/* Ranks of all the pages a segment uses, each page rounded up to whole units. */
static int64_t segment_ranks(const job *j, const tile_t *segment) {
    int64_t ranks = 0;
    for (int64_t p = 0; p < segment->pages; p++)
        ranks += (j->site->page_ranks[segment->at + p] + LK_UNIT - 1) / LK_UNIT * LK_UNIT;
    return ranks;
}

/* Rows times ranks of the batch, the reading of weights included: what each phase's cost is a multiple of. */
static int64_t batch_cost(const job *j, int64_t most_rows) {
    int64_t cost = 0;
    for (int64_t s = 0; s < j->batch->segments; s++) {
        tile_t segment = segment_at(j, s);
        int64_t tiles = (segment.rows + most_rows - 1) / most_rows;
        cost += (segment.rows + tiles * WEIGHT_ROWS) * segment_ranks(j, &segment);
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

/* Point x[] at the tile's rows as shrink wants them. */
static void x_rows(const job *j, const tile_t *tile, const void **x, const thread_scratch *mine) {
    const lk_site *site = j->site;
    int lies_ready = site->k == site->padded_k && j->kernels->in_place[site->dtype] == j->x.dtype;
    for (int64_t t = 0; t < tile->rows; t++) {
        x[t] = row_at(&j->x, tile->order[t]);
        if (!lies_ready) {
            char *packed = mine->packed + t * site->padded_k * (int64_t)sizeof(float);
            j->kernels->pack_row(x[t], j->x.dtype, site->k, site->padded_k, site->dtype, packed);
            x[t] = packed;
        }
    }
}

static void v_pointers(const job *j, const tile_t *tile, int64_t slice, float **out) {
    float *first = j->v.data + slice * j->v.slice_stride;
    for (int64_t t = 0; t < tile->rows; t++)
        out[t] = first + (j->v.by_row_id ? tile->order[t] : tile->first + t) * j->v.row_stride;
}

static void shrink_units(const job *j, const lk_unit *units, int64_t count, const void *const *x, int64_t rows,
                         float *const *v, float *sums) {
    const lk_site *site = j->site;
    int64_t step = rows > 1 && site->padded_k > WHOLE_K ? K_BLOCK : site->padded_k;
    for (int64_t begin = 0; begin < site->padded_k; begin += step)
        for (int64_t u = 0; u < count; u++)
            j->kernels->shrink(&units[u], site->dtype, site->padded_k, begin, minimum(begin + step, site->padded_k), x,
                               (int)rows, v, sums + u * LK_SHRINK_ROWS * LK_UNIT * LK_LANES);
}

/* Ranks [r, r + LK_UNIT) of the tile's page p. */
static lk_unit unit_at(const job *j, const tile_t *tile, int64_t p, int64_t slice, int64_t r) {
    const lk_site *site = j->site;
    int64_t at = tile->at + p, row = (site->page_table[at] * site->slices + slice) * site->page_size + r;
    return (lk_unit){(const char *)site->a + row * site->padded_k * lk_element_size(site->dtype),
                     minimum(LK_UNIT, site->page_ranks[at] - r), slice * j->v.slice_stride + p * site->page_size + r,
                     site->page_scales[at]};
}

static void shrink_tile(const job *j, const tile_t *tile, share *s, const thread_scratch *mine) {
    const void *x[LK_SHRINK_ROWS];
    float *v[LK_SHRINK_ROWS];
    lk_unit units[MOST_UNITS];
    int64_t count = 0;
    int ready = 0;
    for (int64_t p = 0; p < tile->pages; p++)
        for (int64_t slice = 0; slice < j->site->slices; slice++)
            for (int64_t r = 0; r < j->site->page_ranks[tile->at + p]; r += LK_UNIT) {
                if (!takes(s, (tile->rows + WEIGHT_ROWS) * LK_UNIT * j->site->k)) continue;
                if (!ready) {
                    x_rows(j, tile, x, mine);
                    v_pointers(j, tile, 0, v);
                    ready = 1;
                }
                units[count++] = unit_at(j, tile, p, slice, r);
                if (count == MOST_UNITS) {
                    shrink_units(j, units, count, x, tile->rows, v, mine->sums);
                    count = 0;
                }
            }
    shrink_units(j, units, count, x, tile->rows, v, mine->sums);
}

static void expand_tile(const job *j, const tile_t *tile, int64_t ranks, share *s, const thread_scratch *mine) {
    const lk_site *site = j->site;
    float *v[LK_EXPAND_ROWS];
    char *y[LK_EXPAND_ROWS];
    for (int64_t slice = 0; slice < site->slices; slice++)
        for (int64_t c = site->offsets[slice], width; c < site->offsets[slice + 1]; c += width) {
            width = minimum(LK_CHUNK, site->offsets[slice + 1] - c);
            if (!takes(s, (tile->rows + WEIGHT_ROWS) * ranks * width)) continue;
            v_pointers(j, tile, slice, v);
            for (int64_t t = 0; t < tile->rows; t++)
                y[t] = row_at(&j->y, tile->order[t]) + c * lk_element_size(j->y.dtype);
            for (int64_t p = 0; p < tile->pages; p++) {
                int64_t first = site->page_table[tile->at + p] * site->page_size * site->n + c;
                mine->b[p] = (const char *)site->b + first * lk_element_size(site->dtype);
            }
            lk_columns columns = {mine->b, site->page_ranks + tile->at, tile->pages, site->page_size, site->n, width};
            j->kernels->expand(&columns, site->dtype, (const float *const *)v, y, j->y.dtype, (int)tile->rows,
                               mine->panel);
        }
}

enum { SHRINK, EXPAND };

/* This thread's share of one phase. */
static void run_phase(const job *j, int phase, const thread_scratch *mine, int thread, int threads) {
    int64_t most_rows = phase == SHRINK ? LK_SHRINK_ROWS : LK_EXPAND_ROWS;
    int64_t per_rank = phase == SHRINK ? j->site->slices * j->site->k : j->site->n;
    int64_t total = batch_cost(j, most_rows) * per_rank;
    share s = {0, total / threads * thread, thread + 1 == threads ? total : total / threads * (thread + 1)};
    for (int64_t i = 0; i < j->batch->segments && s.at < s.end; i++) {
        tile_t segment = segment_at(j, i);
        int64_t ranks = segment_ranks(j, &segment);
        for (int64_t offset = 0; offset < segment.rows && s.at < s.end; offset += most_rows) {
            tile_t tile = tile_of(&segment, offset, most_rows);
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

/* Where the parts of one thread's scratch end, in their order. */
typedef struct {
    int64_t b, packed, sums, panel;
} scratch_ends;

static scratch_ends thread_ends(const lk_site *site) {
    const int64_t size = sizeof(float);
    scratch_ends ends;
    ends.b = whole_lines(site->max_pages * (int64_t)sizeof(void *));
    ends.packed = ends.b + whole_lines(LK_SHRINK_ROWS * site->padded_k * size);
    ends.sums = ends.packed + MOST_UNITS * LK_SHRINK_ROWS * LK_UNIT * LK_LANES * size;
    ends.panel = ends.sums + site->max_pages * site->page_size * LK_CHUNK * size;
    return ends;
}

static thread_scratch thread_part(const lk_site *site, char *scratch, int thread) {
    scratch_ends ends = thread_ends(site);
    char *part = scratch + thread * ends.panel;
    return (thread_scratch){(const void **)part, part + ends.b, (float *)(part + ends.packed),
                            (float *)(part + ends.sums)};
}

static char *on_a_line(void *scratch) { return (char *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE); }

int64_t lk_scratch_bytes(const lk_site *site, int64_t rows, int threads) {
    int64_t v = rows * site->slices * site->max_pages * site->page_size * (int64_t)sizeof(float);
    return LINE + threads * thread_ends(site).panel + whole_lines(v);
}

static void apply_by(const lk_site *site, const lk_batch *batch, lk_rows y, lk_rows x, void *scratch, int thread,
                     int threads) {
    char *parts = on_a_line(scratch);
    thread_scratch mine = thread_part(site, parts, thread);
    job j = {lk_chosen(x.dtype, site->dtype), site, batch, x, y,
             {(float *)(parts + threads * thread_ends(site).panel), 0, 0, 0}};
    j.v.slice_stride = most_pages(&j) * site->page_size;
    j.v.row_stride = site->slices * j.v.slice_stride;
    run_phase(&j, SHRINK, &mine, thread, threads);
    if (threads > 1) {
#pragma omp barrier
    }
    run_phase(&j, EXPAND, &mine, thread, threads);
    if (threads > 1) {
#pragma omp barrier
    }
}

void lk_apply_team(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype,
                   const void *x, int64_t x_stride, int64_t x_dtype, void *scratch) {
    apply_by(site, batch, (lk_rows){y, y_stride, y_dtype}, (lk_rows){(char *)x, x_stride, x_dtype}, scratch,
             omp_get_thread_num(), omp_get_num_threads());
}

static int worthwhile_threads(const job *j, int shrinks, int expands, int threads) {
    int64_t per_rank = shrinks * j->site->slices * j->site->k + expands * j->site->n;
    return (int)minimum(threads, 1 + batch_cost(j, LK_EXPAND_ROWS) * per_rank / COST_PER_THREAD);
}

int lk_apply(const lk_call *call) {
    const lk_batch *batch = call->batch;
    job j = {NULL, call->site, batch, call->x, call->y, {NULL, 0, 0, 0}};
    int threads = worthwhile_threads(&j, 1, 1, (int)call->threads);
    void *scratch = malloc((size_t)lk_scratch_bytes(call->site, batch->segment_starts[batch->segments], threads));
    if (!scratch) return -1;
    /* A team of one is not free either: 1.3 us. */
    if (threads == 1) {
        apply_by(call->site, batch, call->y, call->x, scratch, 0, 1);
    } else {
#pragma omp parallel num_threads(threads)
        apply_by(call->site, batch, call->y, call->x, scratch, omp_get_thread_num(), omp_get_num_threads());
    }
    free(scratch);
    return 0;
}

/* One phase alone, v in the caller's memory. */
static int run_alone(const job *j, int phase, int threads) {
    threads = worthwhile_threads(j, phase == SHRINK, phase == EXPAND, threads);
    char *scratch = malloc((size_t)lk_scratch_bytes(j->site, 0, threads));
    if (!scratch) return -1;
#pragma omp parallel num_threads(threads)
    {
        int thread = omp_get_thread_num();
        thread_scratch mine = thread_part(j->site, on_a_line(scratch), thread);
        run_phase(j, phase, &mine, thread, omp_get_num_threads());
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
