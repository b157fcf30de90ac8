/* Scheduling: panels over threads, rows and k into blocks that stay in a cache; and the choice of kernels. */
#include "linear.h"

#include <string.h>

#include "fetch.h"
#include "linear_kernels.h"

/* x of one block of rows: a quarter of a 512 KiB second-level cache; 96 to 256 KiB are within 3 %. */
enum { X_BLOCK_BYTES = 128 << 10 };
/* One panel's share of a block of k: three quarters of a 32 KiB first-level cache, the rest is for x and y. */
enum { W_BLOCK_BYTES = 24 << 10 };
/* Up to this many rows every thread prepares x for itself: cheaper than a barrier. */
enum { PRIVATE_ROWS = 4 };
/* Panels of few rows that a thread takes at once are a multiple of this: their weights stream in in order. */
enum { STREAMED_PANELS = 2 };
/* How far ahead of use weights are fetched where a tile covers several panels or k whole. */
enum { AHEAD_BYTES = 2048 };
/* Panels of a part that a caller adds to: 128 columns. */
enum { PART_PANELS = 8 };
/* Strips that are fetched beside a part, and pieces of them beside a tile, at most. */
enum { MOST_STRIPS = 512, MOST_PIECES = 6 };

static const sk_kernels *chosen[SK_DTYPES] = {&sk_portable[0], &sk_portable[1], &sk_portable[2]};

static int supported(const char *name) {
    if (!strcmp(name, "portable")) return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx2")) return avx2;
    if (!strcmp(name, "avx512"))
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    return 0;
}

static const sk_kernels *kernels_of(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "avx2")) return sk_avx2;
    if (!strcmp(name, "avx512")) return sk_avx512;
#endif
    return sk_portable;
}

int sk_linear_use(const char *name) {
    for (int64_t dtype = 0; dtype < SK_DTYPES; dtype++) chosen[dtype] = &sk_portable[dtype];
    if (!supported(name)) return -1;
    const sk_kernels *set = kernels_of(name);
    for (int64_t dtype = 0; dtype < SK_DTYPES; dtype++)
        if (!sk_linear_agrees(&set[dtype], dtype)) return -2;
    for (int64_t dtype = 0; dtype < SK_DTYPES; dtype++) chosen[dtype] = &set[dtype];
    return 0;
}

static int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Bytes of a prepared row: whole cache lines, an odd number of them, so that rows do not share the sets of a cache. */
static int64_t prepared_stride(int64_t k, int64_t x_bytes) {
    int64_t bytes = (int64_t)sizeof(sk_row) + round_up(k, SK_BLOCK) / SK_BLOCK * x_bytes;
    return (round_up(bytes, 64) / 64 | 1) * 64;
}

int64_t sk_linear_scratch(int64_t k, int64_t rows, int64_t threads) {
    int64_t held = rows > PRIVATE_ROWS * threads ? rows : PRIVATE_ROWS * threads;
    return held * prepared_stride(k, SK_BLOCK * (int64_t)sizeof(float));
}

typedef struct {
    const char *data;
    int64_t stride;
} rows_of_x;

static rows_of_x prepared_rows(const sk_kernels *kernels, int64_t k, const float *x, int64_t ldx, int64_t rows,
                               void *scratch, sk_team *team) {
    if (!kernels->prepare) return (rows_of_x){(const char *)x, ldx * (int64_t)sizeof(float)};
    int64_t thread = sk_thread(), threads = sk_threads(), stride = prepared_stride(k, kernels->x_bytes);
    int private = rows <= PRIVATE_ROWS;
    char *data = (char *)scratch + (private ? thread * PRIVATE_ROWS * stride : 0);
    for (int64_t row = private ? 0 : thread; row < rows; row += private ? 1 : threads)
        kernels->prepare(x + row * ldx, k, data + row * stride);
    if (!private) sk_team_wait(team);
    return (rows_of_x){data, stride};
}

typedef struct {
    const sk_kernels *kernels;
    const sk_linear *w;
    rows_of_x x;
    float *y;
    int64_t ldy;
    int accumulate;
    int64_t k;                        /* as packed */
    int64_t pair_bytes, panel_bytes;  /* of one panel */
} job;

static const char *weights_at(const job *j, int64_t panel, int64_t k) {
    return (const char *)j->w->packed + panel * j->panel_bytes + k / 2 * j->pair_bytes;
}

/* Panels [panel, panel + panels) for rows [row, row + rows) and k in [k, k + length). */
static sk_tile make_tile(const job *j, int64_t panel, int64_t panels, int64_t row, int64_t rows, int64_t k,
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
static void run_cut_tile(const sk_kernels *kernels, sk_tile *t, int64_t columns) {
    float *y = t->y, whole[SK_TILE_ROWS * SK_PANEL];
    int64_t ldy = t->ldy;
    for (int64_t row = 0; t->from_y && row < t->rows; row++)
        for (int64_t c = 0; c < SK_PANEL; c++) whole[row * SK_PANEL + c] = c < columns ? y[row * ldy + c] : 0;
    t->y = whole;
    t->ldy = SK_PANEL;
    kernels->tile(t);
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t c = 0; c < columns; c++) y[row * ldy + c] = whole[row * SK_PANEL + c];
}

static void run_tile(const job *j, sk_tile *t, int64_t panel) {
    if ((panel + t->panels) * SK_PANEL > j->w->n)
        run_cut_tile(j->kernels, t, j->w->n - panel * SK_PANEL);
    else
        j->kernels->tile(t);
}

/* Panels of the tile that begins with `panel`: as many as the kernels take at most, but a cut panel comes alone. */
static int64_t count_panels(const job *j, int64_t panel, int64_t last, int64_t most) {
    int64_t panels = most;
    while (panels > last - panel || (panels > 1 && (panel + panels) * SK_PANEL > j->w->n)) panels /= 2;
    return panels;
}

/* Of several 8-bit panels half as far: 2 % more at 1 row, 10 at 2. Where AVX-512 reads a block twice, two blocks: 10 % at
 * 12 rows. */
static int64_t bytes_ahead(const job *j, int64_t panels, int64_t rows) {
    if (j->w->dtype != SK_INT8 || panels == 1) return AHEAD_BYTES;
    return rows > SK_FEW_ROWS ? 2 * AHEAD_BYTES : AHEAD_BYTES / 2;
}

/* Few rows: one tile covers all of them, and every weight is read once, as it streams in. */
static void run_streaming(const job *j, int64_t rows, int64_t first, int64_t last, sk_team *team) {
    int64_t turn_bytes = sk_turn_bytes(j->w->dtype), turns = j->k / sk_turn(j->w->dtype);
    for (int64_t panel = first, panels; panel < last; panel += panels) {
        panels = count_panels(j, panel, last, sk_tile_panels(j->kernels, rows));
        int64_t ahead_turns = least(bytes_ahead(j, panels, rows) / turn_bytes, turns);
        sk_tile t = make_tile(j, panel, panels, 0, rows, 0, j->k);
        int64_t then = panel + panels < last ? panel + panels : sk_team_next(team) * STREAMED_PANELS;
        sk_ahead ahead[] = {
            {t.w + ahead_turns * turn_bytes, turn_bytes, j->panel_bytes, turns - ahead_turns},
            {weights_at(j, then, 0), turn_bytes, j->panel_bytes, ahead_turns},
        };
        t.ahead = ahead;
        run_tile(j, &t, panel);
    }
}

/* Some panels, k in [k, k + length), rows in groups of nearly equal size; meanwhile the weights at `next` are fetched, a
 * part of them with each group, and what is wanted beside the product. */
static void run_groups(const job *j, int64_t panel, int64_t panels, int64_t row, int64_t end, int64_t k, int64_t length,
                       const char *next, sk_fetch *fetch) {
    int64_t groups = (end - row + j->kernels->rows - 1) / j->kernels->rows;
    int64_t turn_bytes = sk_turn_bytes(j->w->dtype), turns = length / sk_turn(j->w->dtype);
    int64_t of_weights = (turns + groups - 1) / groups;
    for (; groups; groups--) {
        int64_t rows = (end - row + groups - 1) / groups;
        sk_tile t = make_tile(j, panel, panels, row, rows, k, length);
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

/* How many rows are cut, so that weights stay in the first-level cache and x in the second. */
typedef struct {
    int64_t k;     /* of a tile */
    int64_t outer; /* k of all panels before the next k: all of it where x fits, the weights then stream in in order */
    int64_t rows;
} blocks;

static blocks cut(const job *j, int64_t rows) {
    int64_t k = j->k, x_bytes = j->kernels->x_bytes;
    int64_t most = j->kernels->side * j->panel_bytes;
    int64_t parts = j->w->dtype == SK_INT8 ? 1 : (most + W_BLOCK_BYTES - 1) / W_BLOCK_BYTES;
    blocks b = {.k = round_up((k + parts - 1) / parts, sk_turn(j->w->dtype))};
    b.outer = rows * k * x_bytes / SK_BLOCK <= X_BLOCK_BYTES ? k : b.k;
    b.rows = X_BLOCK_BYTES / (b.outer * x_bytes / SK_BLOCK) / j->kernels->rows * j->kernels->rows;
    if (b.rows < j->kernels->rows) b.rows = j->kernels->rows;
    return b;
}

/* Rows [row, end) for panels [first, last). */
static void run_block(const job *j, const blocks *b, int64_t row, int64_t end, int64_t first, int64_t last,
                      sk_fetch *fetch, sk_team *team) {
    int64_t k = j->k, side = j->kernels->side, tiles = (sk_panels(j->w->n) + side - 1) / side;
    for (int64_t start = 0; start < k; start += b->outer)
        for (int64_t panel = first, panels; panel < last; panel += panels) {
            panels = count_panels(j, panel, last, side);
            int64_t then = panel + panels < last ? panel + panels : sk_team_next(team) % tiles * side;
            for (int64_t at = start; at < least(start + b->outer, k); at += b->k) {
                int in_order = b->outer == k && at + b->k < k;
                const char *next = weights_at(j, in_order ? panel : then, in_order ? at + b->k : start);
                run_groups(j, panel, panels, row, end, at, least(b->k, k - at), next, fetch);
            }
        }
}

/* Tiles of so many rows and panels. */
static int64_t count_tiles(const job *j, const blocks *b, int64_t rows, int64_t panels) {
    int64_t side = j->kernels->side;
    int64_t groups = (rows + j->kernels->rows - 1) / j->kernels->rows;
    return (j->k + b->k - 1) / b->k * groups * ((panels + side - 1) / side);
}

static sk_part make_part(const job *j, int64_t row, int64_t end, int64_t first, int64_t last) {
    return (sk_part){row, end, first * SK_PANEL, least(last * SK_PANEL, j->w->n)};
}

static void add_part(sk_addend addend, sk_part part) {
    if (addend.add) addend.add(addend.context, &part);
}

/* A block and what the caller adds to it. */
static void run_part(const job *j, const blocks *b, int64_t row, int64_t end, int64_t first, int64_t last,
                     sk_addend addend, sk_team *team) {
    sk_part part = make_part(j, row, end, first, last);
    sk_strip strips[MOST_STRIPS];
    int64_t count = addend.list ? addend.list(addend.context, &part, strips, MOST_STRIPS) : 0;
    sk_fetch fetch;
    sk_fetch_start(&fetch, strips, count, count_tiles(j, b, end - row, last - first),
                   j->kernels->side, sk_turn_bytes(j->w->dtype));
    run_block(j, b, row, end, first, last, &fetch, team);
    add_part(addend, part);
}

static void run_few_rows(const job *j, int64_t rows, sk_addend addend, sk_team *team) {
    int64_t panels = sk_panels(j->w->n), count = (panels + STREAMED_PANELS - 1) / STREAMED_PANELS;
    sk_range mine;
    while ((mine = sk_team_take(team, count, 1, count)).begin < count) {
        int64_t first = mine.begin * STREAMED_PANELS, last = least(mine.end * STREAMED_PANELS, panels);
        run_streaming(j, rows, first, last, team);
        add_part(addend, make_part(j, 0, rows, first, last));
    }
}

/* Panels of the first block of rows, panels of the second, and so on. Taken in whole tiles: of 60 panels, shared out in
 * ever smaller pieces, every other piece would end with half of one, 5 % of 32 rows' time. */
static void run_many_rows(const job *j, int64_t rows, sk_addend addend, sk_team *team) {
    blocks b = cut(j, rows);
    int64_t panels = sk_panels(j->w->n), side = j->kernels->side;
    int64_t each = (panels + side - 1) / side, count = (rows + b.rows - 1) / b.rows * each;
    /* Where x comes from further away for each part, the fewer the better. */
    int64_t most = addend.add && b.outer == j->k ? PART_PANELS / side : each;
    if (rows <= j->kernels->bound_rows) addend.list = NULL;
    sk_range mine;
    while ((mine = sk_team_take(team, count, 1, count)).begin < count)
        for (int64_t at = mine.begin, upto; at < mine.end; at = upto) {
            int64_t block = at / each, first = block * each, row = block * b.rows;
            upto = least(least(mine.end, first + each), at + most);
            run_part(j, &b, row, least(row + b.rows, rows), (at - first) * side, least((upto - first) * side, panels),
                     addend, team);
        }
}

void sk_linear_team(const sk_linear *w, const float *x, int64_t ldx, int64_t rows, float *y, int64_t ldy,
                    int accumulate, sk_addend addend, void *scratch, sk_team *team) {
    const sk_kernels *kernels = chosen[w->dtype];
    job j = {kernels, w, prepared_rows(kernels, w->k, x, ldx, rows, scratch, team), y, ldy, accumulate,
             sk_padded(w->k, w->dtype), 2 * SK_PANEL * sk_element_size(w->dtype), sk_panel_bytes(w->k, w->dtype)};
    if (rows && rows <= kernels->rows)
        run_few_rows(&j, rows, addend, team);
    else
        run_many_rows(&j, rows, addend, team);
}

void sk_linear_run(const sk_linear *const *w, int64_t count, const float *x, int64_t ldx, int64_t rows, float *y,
                   int64_t ldy, int accumulate, void *scratch, int threads) {
    sk_team team;
    sk_team_start(&team, threads);
#pragma omp parallel num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        sk_linear_team(w[i], x, ldx, rows, y, ldy, accumulate, (sk_addend){0}, scratch, &team);
        sk_team_wait(&team);
    }
}
