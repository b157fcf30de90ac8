/* A kernel set is used only after it agreed with the portable one on this very processor: a wrong instruction path
 * would corrupt every customer's output without a sign. Takes microseconds, once a process. */
#include <math.h>
#include <string.h>

#include "kernels.h"

enum { K = 50, PADDED_K = 64, N = 128, BEGIN = 5, WIDTH = 90, PAGE = 16, RANKS = 15, ROWS = 53, PAGES = 2 };

typedef struct {
    /* Rows one after another, in the type under test. */
    float a[PAGES * PAGE * PADDED_K], b[PAGES * PAGE * N], x[ROWS * K], y[ROWS * WIDTH];
    float v[ROWS][PAGES * PAGE], rank_scales[PAGES * PAGE];
    uint16_t wide[LK_UNIT * PADDED_K];
    float panel[PAGES * PAGE * LK_CHUNK];
} problem;

static float next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state / 2147483648.0f;
}

static void fill(float *out, int64_t count, int64_t dtype, uint32_t *state) {
    for (int64_t i = 0; i < count; i++) {
        float value = next(state);
        if (dtype == LK_I8)
            ((int8_t *)out)[i] = (int8_t)(value * 127);
        else if (dtype == LK_BF16)
            ((uint16_t *)out)[i] = lk_f32_to_bf16(value);
        else
            out[i] = value;
    }
}

static void solve(const lk_kernels *kernels, int64_t x_dtype, int64_t dtype, problem *p) {
    static const int32_t ranks[PAGES] = {PAGE, RANKS};
    uint32_t state = 1;
    float packed[ROWS][PADDED_K];
    const void *x[ROWS], *b[PAGES];
    const float *v_read[ROWS];
    float *v[ROWS];
    char *y[ROWS];
    memset(p, 0, sizeof *p);
    fill(p->a, PAGES * PAGE * PADDED_K, dtype, &state);
    fill(p->b, PAGES * PAGE * N, dtype, &state);
    fill(p->x, ROWS * K, x_dtype, &state);
    fill(p->y, ROWS * WIDTH, x_dtype, &state);
    /* 8-bit weights are 127 times as large. */
    for (int i = 0; i < PAGES * PAGE; i++)
        p->rank_scales[i] = dtype == LK_I8 ? (0.75f + next(&state) / 4) / (127 * 127) : 1;
    for (int t = 0; t < ROWS; t++) {
        const char *row = (const char *)p->x + t * K * lk_element_size(x_dtype);
        kernels->pack_row(row, x_dtype, K, PADDED_K, dtype, packed[t]);
        x[t] = packed[t];
        v_read[t] = v[t] = p->v[t];
        y[t] = (char *)p->y + t * WIDTH * lk_element_size(x_dtype);
    }
    for (int page = 0; page < PAGES; page++) {
        for (int r = 0; r < ranks[page]; r += LK_UNIT) {
            int at = page * PAGE + r, left = ranks[page] - r;
            lk_unit unit = {(const char *)p->a + at * PADDED_K * lk_element_size(dtype),
                            left < LK_UNIT ? left : LK_UNIT, at, 0.5f, p->rank_scales + at, p->a};
            /* One row takes other code paths than many. */
            kernels->shrink(&unit, dtype, PADDED_K, x, ROWS, v, p->wide);
            kernels->shrink(&unit, dtype, PADDED_K, x, 1, v, p->wide);
        }
        b[page] = (const char *)p->b + page * PAGE * N * lk_element_size(dtype);
    }
    lk_columns columns = {b, ranks, PAGES, PAGE, N * LK_UNIT, BEGIN, WIDTH};
    kernels->expand(&columns, dtype, v_read, y, x_dtype, ROWS, p->panel);
    kernels->expand(&columns, dtype, v_read, y, x_dtype, 1, p->panel);
}

int lk_agrees(const lk_kernels *candidate, int64_t x_dtype, int64_t dtype) {
    problem expected, actual;
    solve(&lk_portable, x_dtype, dtype, &expected);
    solve(candidate, x_dtype, dtype, &actual);
    /* Sums of about 50 products and 31 more, all below 1: float32 order costs 1e-5, one bfloat16 rounding of y 2^-8. A
     * set that rounds x and v to the type of its weights: 2^-9 of each v and x, over 0.02 in the largest of 5,000
     * sums. */
    float tolerance = candidate->rounds ? 0.03f : x_dtype == LK_BF16 ? 0.01f : 1e-4f;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        float e, g;
        if (x_dtype == LK_BF16) {
            e = lk_bf16_to_f32(((uint16_t *)expected.y)[i]);
            g = lk_bf16_to_f32(((uint16_t *)actual.y)[i]);
        } else {
            e = expected.y[i];
            g = actual.y[i];
        }
        if (!(fabsf(e - g) <= tolerance * (1 + fabsf(e)))) return 0;
    }
    return 1;
}
