/* Scheduling: every thread of a team walks the same list of work and does its own share of it.
 *
 * Two phases, shrink and expand, a barrier after each. Work is cut into tiles, some rows of one adapter, and these by
 * LK_UNIT ranks (shrink) or LK_COLUMNS columns (expand). Each thread does an equal, contiguous share of the total cost:
 * handing pieces to whoever is free breaks the weights into shorter runs, and loses what it saves in waiting.
 * Nothing is allocated here, and nothing that is computed depends on who does it.
 */
#include "work.h"

#include "places.h"

/* Reading weights costs a tile as much as computing this many rows (float32 weights in the last-level cache). */
enum { WEIGHT_ROWS = 2 };

/* Rows of one adapter. */
typedef struct {
    const int32_t *order;  /* [rows], row ids */
    int64_t first, rows;   /* place of the first one in row_order */
    int64_t at, pages;     /* the slot's first page in the tables, and how many of them the site uses */
    int64_t then;          /* the place in the tables of the page that comes after these: the next adapter's first */
} tile_t;

/* One thread's part [begin, end) of a phase's cost, and how far the walk has come. */
typedef struct {
    int64_t at, begin, end;
} share;

/* Return whether the next unit of ranks is this thread's: its middle lies in the share, so that no share is off by more
 * than half of one. */
static int takes(share *s, int64_t cost) {
    int64_t middle = s->at + cost / 2;
    s->at += cost;
    return middle >= s->begin && middle < s->end;
}

static char *row_at(const lk_rows *rows, int64_t row) {
    return rows->data + row * rows->stride * lk_element_size(rows->dtype);
}

static tile_t segment_at(const lk_job *j, int64_t segment) {
    int64_t first = j->batch->segment_starts[segment], slot = j->batch->segment_slots[segment];
    int64_t next = j->batch->segment_slots[segment + 1 < j->batch->segments ? segment + 1 : segment];
    return (tile_t){j->batch->row_order + first, first, j->batch->segment_starts[segment + 1] - first,
                    slot * j->site->max_pages, j->site->live[slot], next * j->site->max_pages};
}

static tile_t tile_of(const tile_t *segment, int64_t offset, int64_t rows) {
    return (tile_t){segment->order + offset, segment->first + offset, minimum(rows, segment->rows - offset),
                    segment->at, segment->pages, segment->then};
}

/* Ranks of all the pages a segment uses, each page rounded up to whole units. */
static int64_t segment_ranks(const lk_job *j, const tile_t *segment) {
    int64_t ranks = 0;
    for (int64_t p = 0; p < segment->pages; p++)
        ranks += (j->site->page_ranks[segment->at + p] + LK_UNIT - 1) / LK_UNIT * LK_UNIT;
    return ranks;
}

/* Rows of a segment's tiles: nearly equal ones, so that threads can share them evenly; whole groups of the kernels. */
static int64_t rows_of_tiles(int phase, int64_t rows) {
    int64_t most = phase == LK_SHRINK ? LK_SHRINK_ROWS : LK_EXPAND_ROWS, tiles = (rows + most - 1) / most + !rows;
    return round_up((rows + tiles - 1) / tiles, phase == LK_SHRINK ? LK_SHRINK_GROUP : LK_EXPAND_GROUP);
}

/* Rows times ranks, the reading of weights included. */
static int64_t segment_cost(const lk_job *j, int phase, const tile_t *segment) {
    int64_t each = rows_of_tiles(phase, segment->rows), tiles = (segment->rows + each - 1) / each;
    return (segment->rows + tiles * WEIGHT_ROWS) * segment_ranks(j, segment);
}

int64_t lk_batch_cost(const lk_job *j, int phase) {
    int64_t cost = 0;
    for (int64_t s = 0; s < j->batch->segments; s++) {
        tile_t segment = segment_at(j, s);
        cost += segment_cost(j, phase, &segment);
    }
    return cost;
}

/* Cost of a row's rank. */
static int64_t cost_per_rank(const lk_job *j, int phase) {
    return phase == LK_SHRINK ? j->site->slices * j->site->k : j->site->n;
}

static share share_of(const lk_job *j, int phase, int64_t thread, int64_t threads) {
    int64_t total = lk_batch_cost(j, phase) * cost_per_rank(j, phase);
    return (share){0, total / threads * thread, thread + 1 == threads ? total : total / threads * (thread + 1)};
}

/* Point x[] at the tile's rows as shrink wants them. */
static void x_rows(const lk_job *j, const tile_t *tile, const void **x, const lk_thread_scratch *mine) {
    const lk_site *site = j->site;
    int lies_ready = site->k == site->padded_k && j->kernels->in_place == j->x.dtype;
    for (int64_t t = 0; t < tile->rows; t++) {
        x[t] = row_at(&j->x, tile->order[t]);
        if (!lies_ready) {
            char *packed = mine->packed + t * site->padded_k * (int64_t)sizeof(float);
            j->kernels->pack_row(x[t], j->x.dtype, site->k, site->padded_k, site->dtype, packed);
            x[t] = packed;
        }
    }
}

static void v_pointers(const lk_job *j, const tile_t *tile, int64_t slice, float **out) {
    float *first = j->v.data + slice * j->v.slice_stride;
    for (int64_t t = 0; t < tile->rows; t++)
        out[t] = first + (j->v.by_row_id ? tile->order[t] : tile->first + t) * j->v.row_stride;
}

static lk_unit unit_at(const lk_job *j, const tile_t *tile, int64_t p, int64_t slice, int64_t r) {
    const lk_site *site = j->site;
    int64_t at = tile->at + p;
    int64_t next_page = p + 1 < tile->pages ? at + 1 : tile->then;
    const char *ahead = r + LK_UNIT < site->page_ranks[at] ? unit_of_a(site, at, slice, r + LK_UNIT)
                        : slice + 1 < site->slices         ? unit_of_a(site, at, slice + 1, 0)
                                                           : unit_of_a(site, next_page, 0, 0);
    return (lk_unit){unit_of_a(site, at, slice, r), minimum(LK_UNIT, site->page_ranks[at] - r),
                     slice * j->v.slice_stride + p * site->page_size + r, site->page_scales[at],
                     scales_of_unit(site, at, slice, r), ahead};
}

static void shrink_tile(const lk_job *j, const tile_t *tile, share *s, const lk_thread_scratch *mine) {
    const void *x[LK_SHRINK_ROWS];
    float *v[LK_SHRINK_ROWS];
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
                lk_unit unit = unit_at(j, tile, p, slice, r);
                j->kernels->shrink(&unit, j->site->dtype, j->site->padded_k, x, (int)tile->rows, v, mine->wide);
            }
}

/* Columns [begin, end) of one slice. */
static void expand_columns(const lk_job *j, const tile_t *tile, int64_t slice, int64_t begin, int64_t end,
                           const lk_thread_scratch *mine) {
    const lk_site *site = j->site;
    float *v[LK_EXPAND_ROWS];
    char *y[LK_EXPAND_ROWS];
    v_pointers(j, tile, slice, v);
    for (int64_t t = 0; t < tile->rows; t++)
        y[t] = row_at(&j->y, tile->order[t]) + site->offsets[slice] * lk_element_size(j->y.dtype);
    for (int64_t p = 0; p < tile->pages; p++) mine->b[p] = page_of_b(site, tile->at + p, site->b_offsets[slice]);
    for (int64_t next; begin < end; begin = next) {
        next = tile->rows == 1 ? end : minimum(begin / LK_COLUMNS * LK_COLUMNS + LK_CHUNK, end);
        lk_columns columns = {mine->b, site->page_ranks + tile->at, tile->pages, site->page_size, unit_of_b(site),
                              begin, next};
        j->kernels->expand(&columns, site->dtype, (const float *const *)v, y, j->y.dtype, (int)tile->rows, mine->panel);
    }
}

/* How many of `width` columns, of which the first costs from `at` on, come before `cost`: whole blocks of the
 * kernels. */
static int64_t columns_before(int64_t cost, int64_t at, int64_t per_column, int64_t width, int64_t block) {
    int64_t columns = cost > at ? (cost - at) / per_column : 0;
    return columns >= width ? width : minimum(width, (columns + block / 2) / block * block);
}

static void expand_tile(const lk_job *j, const tile_t *tile, int64_t ranks, share *s, const lk_thread_scratch *mine) {
    const lk_site *site = j->site;
    int64_t per_column = (tile->rows + WEIGHT_ROWS) * ranks, block = tile->rows == 1 ? LK_B_BLOCK : LK_COLUMNS;
    for (int64_t slice = 0; slice < site->slices; slice++) {
        int64_t width = site->offsets[slice + 1] - site->offsets[slice];
        int64_t begin = columns_before(s->begin, s->at, per_column, width, block);
        int64_t end = columns_before(s->end, s->at, per_column, width, block);
        if (begin < end) expand_columns(j, tile, slice, begin, end, mine);
        s->at += per_column * width;
    }
}

void lk_run_phase(const lk_job *j, int phase, const lk_thread_scratch *mine, int64_t thread, int64_t threads) {
    int64_t per_rank = cost_per_rank(j, phase);
    share s = share_of(j, phase, thread, threads);
    for (int64_t i = 0; i < j->batch->segments && s.at < s.end; i++) {
        tile_t segment = segment_at(j, i);
        int64_t ranks = segment_ranks(j, &segment);
        /* An adapter that leaves this site alone: its rows keep their bits. */
        if (!ranks) continue;
        int64_t each = rows_of_tiles(phase, segment.rows);
        for (int64_t offset = 0; offset < segment.rows && s.at < s.end; offset += each) {
            tile_t tile = tile_of(&segment, offset, each);
            int64_t cost = (tile.rows + WEIGHT_ROWS) * ranks * per_rank;
            if (s.at + cost <= s.begin)
                s.at += cost;
            else if (phase == LK_SHRINK)
                shrink_tile(j, &tile, &s, mine);
            else
                expand_tile(j, &tile, ranks, &s, mine);
        }
    }
}

/* Return whether some of the segment's work is in the share, which is then past it. */
static int touches(const lk_job *j, int phase, const tile_t *segment, share *s) {
    int64_t begin = s->at;
    s->at += segment_cost(j, phase, segment) * cost_per_rank(j, phase);
    return begin < s->end && s->at > s->begin;
}

/* Bytes of so many columns of a page's ranks, which are read by whole units. */
static int64_t bytes_of(const lk_site *site, int64_t at, int64_t columns) {
    return round_up(site->page_ranks[at], LK_UNIT) * columns * lk_element_size(site->dtype);
}

/* All ranks of a page are one strip: of b, or of each slice of a. */
static int64_t list_pages(const lk_site *site, const lk_batch *batch, int phase, int64_t thread, int64_t threads,
                          lk_strip *out, int64_t most) {
    const lk_job j = {.site = site, .batch = batch};
    int64_t columns = phase == LK_SHRINK ? site->padded_k : site->padded_n;
    int64_t slices = phase == LK_SHRINK ? site->slices : 1, count = 0;
    share s = share_of(&j, phase, thread, threads);
    for (int64_t i = 0; i < batch->segments; i++) {
        tile_t segment = segment_at(&j, i);
        if (!touches(&j, phase, &segment, &s)) continue;
        for (int64_t at = segment.at; at < segment.at + segment.pages; at++)
            for (int64_t slice = 0; slice < slices; slice++) {
                if (count == most) return count;
                const char *data = phase == LK_SHRINK ? unit_of_a(site, at, slice, 0) : page_of_b(site, at, 0);
                out[count++] = (lk_strip){data, bytes_of(site, at, columns)};
            }
    }
    return count;
}

int64_t lk_list_shrink(const lk_site *site, const lk_batch *batch, int64_t thread, int64_t threads, lk_strip *out,
                       int64_t most) {
    return list_pages(site, batch, LK_SHRINK, thread, threads, out, most);
}

int64_t lk_list_expand(const lk_site *site, const lk_batch *batch, int64_t thread, int64_t threads, lk_strip *out,
                       int64_t most) {
    return list_pages(site, batch, LK_EXPAND, thread, threads, out, most);
}
