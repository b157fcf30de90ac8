/* How a product is cut: rows and k into blocks that stay in a cache, columns into parts that threads take as they
 * come. */
#include "linear_job.h"

#include <stddef.h>

#include "fetch.h"

/* x of one block of rows: a quarter of a 512 KiB second-level cache; 96 to 256 KiB are within 3 %. */
enum { X_BLOCK_BYTES = 128 << 10 };
/* One panel's share of a block of k: three quarters of a 32 KiB first-level cache, the rest is for x and y. */
enum { W_BLOCK_BYTES = 24 << 10 };
/* Panels of few rows that a thread takes at once are a multiple of this: their weights stream in in order. */
enum { STREAMED_PANELS = 2 };
/* How far ahead of use weights are fetched where a tile covers several panels or k whole. */
enum { AHEAD_BYTES = 2048 };
/* Pieces of strips that are fetched beside one tile, at most. */
enum { MOST_PIECES = 6 };
/* The bfloat16 weights of one tile that are unpacked at once: they are written and read in a first-level cache. Few rows
 * take so little that fetches, which unpacking does alone, come evenly: with 16 KiB a lone row takes a tenth longer. Many
 * rows take a block of k. */
enum { FUSED_PANELS = 4, UNPACKED_BYTES = 4 << 10, MOST_UNPACKED_BYTES = W_BLOCK_BYTES + (2 << 10) };

/* The work that threads take, one item after another: `each` units of panels for the first so many rows, as many for
 * the next. */
typedef struct {
    int64_t rows, unit, each, count;
} sharing;

/* Panels [first, last) of rows [row, end); at panel `then` the thread goes on, -1: with a unit that is not taken
 * yet. */
typedef struct {
    int64_t row, end, first, last, then;
    const sharing *of;
} piece;

/* How many rows are cut, so that weights stay in the first-level cache and x in the second. */
typedef struct {
    int64_t k;     /* of a tile */
    int64_t outer; /* k of all panels before the next k: all of it where x fits, the weights then stream in in order */
    int64_t rows;
} blocks;

static int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where the weights of a panel from k on lie; unpacked ones about there. */
static const char *weights_at(const sk_job *j, int64_t panel, int64_t k) {
    return (const char *)j->w->packed + panel * j->panel_bytes + k * j->turn_bytes / j->turn;
}

/* Panels [panel, panel + panels) for rows [row, row + rows) and k in [k, k + length). */
static sk_tile make_tile(const sk_job *j, int64_t panel, int64_t panels, int64_t row, int64_t rows, int64_t k,
                         int64_t length) {
    const char *w = weights_at(j, panel, k);
    return (sk_tile){
        .w = w, .panel_bytes = j->panel_bytes, .scales = j->w->scales ? j->w->scales + panel * SK_PANEL : NULL,
        .panels = panels, .k = length,
        .x = j->x.data + row * j->x.stride + k * j->kernels->x_bytes / SK_BLOCK, .x_stride = j->x.stride, .rows = rows,
        .y = j->y + row * j->ldy + panel * SK_PANEL, .ldy = j->ldy, .from_y = j->accumulate || k > 0,
    };
}

/* A tile whose one panel is cut off by n: through a buffer. */
static void run_cut_tile(const sk_job *j, void (*run)(const sk_job *j, const sk_tile *t), sk_tile *t, int64_t columns) {
    float *y = t->y, whole[SK_TILE_ROWS * SK_PANEL];
    int64_t ldy = t->ldy;
    for (int64_t row = 0; t->from_y && row < t->rows; row++)
        for (int64_t c = 0; c < SK_PANEL; c++) whole[row * SK_PANEL + c] = c < columns ? y[row * ldy + c] : 0;
    t->y = whole;
    t->ldy = SK_PANEL;
    run(j, t);
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t c = 0; c < columns; c++) y[row * ldy + c] = whole[row * SK_PANEL + c];
}

static void run_plain(const sk_job *j, const sk_tile *t) { j->kernels->tile(t); }

static void run_fused(const sk_job *j, const sk_tile *t) { j->fused(&j->w->groups, t); }

static void run_by(const sk_job *j, void (*run)(const sk_job *j, const sk_tile *t), sk_tile *t, int64_t panel) {
    if ((panel + t->panels) * SK_PANEL > j->w->n)
        run_cut_tile(j, run, t, j->w->n - panel * SK_PANEL);
    else
        run(j, t);
}

static void run_tile(const sk_job *j, sk_tile *t, int64_t panel) { run_by(j, run_plain, t, panel); }

/* Panels of the tile that begins with `panel`: as many as the kernels take at most, but a cut panel comes alone. */
static int64_t count_panels(const sk_job *j, int64_t panel, int64_t last, int64_t most) {
    int64_t panels = most;
    while (panels > last - panel || (panels > 1 && (panel + panels) * SK_PANEL > j->w->n)) panels /= 2;
    return panels;
}

/* Return how far ahead weights are fetched. Several 8-bit panels: half as far, 2 % faster at 1 row and 10 at 2. Where
 * AVX-512 reads a block twice, two blocks: 10 % at 12 rows. */
static int64_t bytes_ahead(const sk_job *j, int64_t panels, int64_t rows) {
    if (j->w->dtype != SK_INT8 || panels == 1) return AHEAD_BYTES;
    return rows > SK_FEW_ROWS ? 2 * AHEAD_BYTES : AHEAD_BYTES / 2;
}

/* Panels of one block of rows: threads keep to their own, 2 to 8 % of steps without prompts. With several blocks the
 * last is smaller, and the thread at home there would soon be among the panels of the others: 16 % more of 15 tokens
 * with a prompt of 160. */
static int has_homes(const sharing *s) { return s->count == s->each; }

static sk_range take(const sk_job *j, const sharing *s, sk_team *team) {
    return has_homes(s) ? sk_team_take_home(team, j->thread, s->count, 1) : sk_team_take(team, s->count, 1, s->count);
}

/* Return the panel where a thread goes on after a piece; after the last of all, the weight that lies behind this
 * one. */
static int64_t panel_after(const sk_job *j, const piece *p, sk_team *team) {
    if (p->then >= 0) return p->then;
    int64_t next = has_homes(p->of) ? sk_team_next_home(team, j->thread, p->of->count) : sk_team_next(team);
    return next < p->of->count ? next % p->of->each * p->of->unit : sk_panels(j->w->n);
}

typedef struct {
    _Alignas(64) uint16_t values[MOST_UNPACKED_BYTES / sizeof(uint16_t)];
} unpacked;

/* Let a tile read its weights, k in [k, k + length), from `to`. Meanwhile what lies AHEAD_BYTES
 * further on in a panel is fetched, or, behind its end, in panel `then`. */
static void unpack_tile(const sk_job *j, sk_tile *t, int64_t panel, int64_t k, int64_t then, unpacked *to) {
    for (int64_t p = 0; p < t->panels; p++) {
        const char *from = (const char *)j->w->packed + (panel + p) * j->panel_bytes;
        const int64_t next = k + AHEAD_BYTES / j->turn_bytes * j->turn;
        const char *ahead = next < j->k ? weights_at(j, panel + p, next) : weights_at(j, then + p, next - j->k);
        j->unpack(&j->w->groups, from, k, t->k, to->values + p * t->k * SK_PANEL, ahead);
    }
    t->w = (const char *)to->values;
    t->panel_bytes = t->k * SK_PANEL * (int64_t)sizeof(uint16_t);
}

/* Few rows of weights that are unpacked: for some k after another, so that each panel stays one chain of sums. */
static void run_unpacking(const sk_job *j, const piece *p, sk_team *team) {
    unpacked weights;
    int64_t rows = p->end - p->row;
    for (int64_t panel = p->first, panels; panel < p->last; panel += panels) {
        const int fused = j->fused && rows <= SK_FUSED_ROWS;
        panels = count_panels(j, panel, p->last, fused ? FUSED_PANELS : sk_tile_panels(j->kernels, rows));
        int64_t then = panel + panels < p->last ? panel + panels : panel_after(j, p, team);
        if (fused) {
            sk_tile t = make_tile(j, panel, panels, p->row, rows, 0, j->k);
            const sk_ahead ahead[] = {{weights_at(j, then, 0), AHEAD_BYTES, 0, 0}};
            t.ahead = ahead;
            run_by(j, run_fused, &t, panel);
            continue;
        }
        int64_t most = UNPACKED_BYTES / (panels * SK_PANEL * (int64_t)sizeof(uint16_t));
        for (int64_t k = 0, length; k < j->k; k += length) {
            length = least(most, j->k - k);
            sk_tile t = make_tile(j, panel, panels, p->row, rows, k, length);
            unpack_tile(j, &t, panel, k, then, &weights);
            const sk_ahead ahead[] = {{t.w, 0, 0, length / j->turn}};
            t.ahead = ahead;
            run_tile(j, &t, panel);
        }
    }
}

/* Few rows: one tile covers all of them, and every weight is read once, as it streams in. */
static void run_streaming(const sk_job *j, const piece *p, sk_team *team) {
    int64_t turn_bytes = j->turn_bytes, turns = j->k / j->turn, rows = p->end - p->row;
    for (int64_t panel = p->first, panels; panel < p->last; panel += panels) {
        panels = count_panels(j, panel, p->last, sk_tile_panels(j->kernels, rows));
        int64_t ahead_turns = least(bytes_ahead(j, panels, rows) / turn_bytes, turns);
        sk_tile t = make_tile(j, panel, panels, p->row, rows, 0, j->k);
        int64_t then = panel + panels < p->last ? panel + panels : panel_after(j, p, team);
        sk_ahead ahead[] = {
            {t.w + ahead_turns * turn_bytes, turn_bytes, j->panel_bytes, turns - ahead_turns},
            {weights_at(j, then, 0), turn_bytes, j->panel_bytes, ahead_turns},
        };
        t.ahead = ahead;
        run_tile(j, &t, panel);
    }
}

/* Some panels, k in [k, k + length), rows in groups of nearly equal size; meanwhile the weights at `next` are fetched,
 * a part of them with each group, and what is wanted beside the product. */
static void run_groups(const sk_job *j, int64_t panel, int64_t panels, int64_t row, int64_t end, int64_t k,
                       int64_t length, const char *next, sk_fetch *fetch) {
    int64_t groups = (end - row + j->kernels->rows - 1) / j->kernels->rows;
    int64_t turn_bytes = j->turn_bytes, turns = length / j->turn;
    unpacked weights;
    sk_tile unpacked_tile = {.panels = panels, .k = length};
    if (j->unpack) unpack_tile(j, &unpacked_tile, panel, k, panel, &weights);
    int64_t of_weights = (turns + groups - 1) / groups;
    for (; groups; groups--) {
        int64_t rows = (end - row + groups - 1) / groups;
        sk_tile t = make_tile(j, panel, panels, row, rows, k, length);
        if (j->unpack) {
            t.w = unpacked_tile.w;
            t.panel_bytes = unpacked_tile.panel_bytes;
        }
        sk_ahead ahead[MOST_PIECES + 1];
        int64_t pieces = sk_fetch_next(fetch, ahead, MOST_PIECES, turns - of_weights), left = turns;
        for (int64_t i = 0; i < pieces; i++) left -= ahead[i].turns;
        /* As evenly as the turns left allow; a k of less than a turn has none. */
        int64_t step = left ? (of_weights * turn_bytes + left - 1) / left : 0;
        ahead[pieces] = (sk_ahead){next, step, j->panel_bytes, left};
        t.ahead = ahead;
        next += of_weights * turn_bytes;
        row += rows;
        run_tile(j, &t, panel);
    }
}

static blocks cut(const sk_job *j) {
    int64_t k = j->k, x_bytes = j->kernels->x_bytes;
    int64_t most = j->kernels->side * (j->unpack ? k * SK_PANEL * (int64_t)sizeof(uint16_t) : j->panel_bytes);
    int64_t parts = j->w->dtype == SK_INT8 ? 1 : (most + W_BLOCK_BYTES - 1) / W_BLOCK_BYTES;
    blocks b = {.k = round_up((k + parts - 1) / parts, j->turn)};
    b.outer = j->rows * k * x_bytes / SK_BLOCK <= X_BLOCK_BYTES ? k : b.k;
    b.rows = X_BLOCK_BYTES / (b.outer * x_bytes / SK_BLOCK);
    b.rows = b.rows / j->kernels->rows * j->kernels->rows;
    if (b.rows < j->kernels->rows) b.rows = j->kernels->rows;
    return b;
}

/* Many rows. */
static void run_block(const sk_job *j, const blocks *b, const piece *p, sk_fetch *fetch, sk_team *team) {
    int64_t k = j->k;
    for (int64_t start = 0; start < k; start += b->outer)
        for (int64_t panel = p->first, panels; panel < p->last; panel += panels) {
            panels = count_panels(j, panel, p->last, j->kernels->side);
            int64_t then = panel + panels < p->last ? panel + panels : panel_after(j, p, team);
            for (int64_t at = start; at < least(start + b->outer, k); at += b->k) {
                int in_order = b->outer == k && at + b->k < k;
                const char *next = weights_at(j, in_order ? panel : then, in_order ? at + b->k : start);
                run_groups(j, panel, panels, p->row, p->end, at, least(b->k, k - at), next, fetch);
            }
        }
}

/* Tiles of the whole product that one of the threads computes, on the average. */
static int64_t count_tiles(const sk_job *j, const blocks *b) {
    int64_t side = j->kernels->side, panels = sk_panels(j->w->n);
    int64_t groups = (j->rows + j->kernels->rows - 1) / j->kernels->rows;
    return (j->k + b->k - 1) / b->k * groups * ((panels + side - 1) / side) / sk_threads() + 1;
}

/* Everything that is shared out, a piece of one block of rows after another. b: NULL for few rows. */
static void take_pieces(const sk_job *j, const blocks *b, const sharing *s, sk_team *team) {
    sk_fetch fetch = {0};
    if (b)
        sk_fetch_start(&fetch, j->beside.strips, j->beside.count, count_tiles(j, b), j->kernels->side,
                       j->turn_bytes);
    for (sk_range mine; (mine = take(j, s, team)).begin < s->count;)
        for (int64_t at = mine.begin, upto; at < mine.end; at = upto) {
            int64_t first = at / s->each * s->each, row = at / s->each * s->rows;
            upto = least(mine.end, first + s->each);
            int64_t last = least((upto - first) * s->unit, sk_panels(j->w->n));
            int64_t then = upto < mine.end ? upto % s->each * s->unit : -1;
            piece p = {row, least(row + s->rows, j->rows), (at - first) * s->unit, last, then, s};
            if (b)
                run_block(j, b, &p, &fetch, team);
            else
                (j->unpack ? run_unpacking : run_streaming)(j, &p, team);
        }
}

/* Share out units of whole tiles: in ever smaller pieces of 60 panels every other piece would end with half of a tile,
 * 5 % of the time at 32 rows. */
static sharing share_out(const sk_job *j, int64_t rows, int64_t unit) {
    int64_t each = (sk_panels(j->w->n) + unit - 1) / unit;
    return (sharing){rows, unit, each, (j->rows + rows - 1) / rows * each};
}

void sk_job_run(const sk_job *j, sk_team *team) {
    if (j->rows && j->rows <= j->kernels->rows) {
        sharing s = share_out(j, j->rows, STREAMED_PANELS);
        take_pieces(j, NULL, &s, team);
    } else {
        blocks b = cut(j);
        sharing s = share_out(j, b.rows, j->kernels->side);
        take_pieces(j, &b, &s, team);
    }
}
