/* A kernel set is used only after it agreed with the portable one on this very processor: a wrong instruction path
 * would corrupt every customer's output without a sign. Takes well under a millisecond, once a process. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "linear_kernels.h"
#include "pack.h"

/* k of 8-bit weights: a wide block of sk_shifted and part of one; and of others. Neither whole blocks nor whole
 * turns. */
enum { K = 146, FLOAT_K = 82, PANELS = 5, N = PANELS * SK_PANEL, ROWS = 16 };

typedef struct {
    _Alignas(64) char packed[N * K * sizeof(float)];
    _Alignas(64) char prepared[ROWS * (K * sizeof(float) + 64)];
    float w[N * K], x[ROWS * K], y[ROWS * N], scales[N], scratch[SK_PANEL * K];
} problem;

static int64_t k_of(int64_t dtype) { return dtype == SK_INT8 ? K : FLOAT_K; }

static float next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state / 2147483648.0f;
}

static void fill(problem *p, int64_t dtype) {
    int64_t k = k_of(dtype);
    uint32_t state = 1;
    for (int i = 0; i < N * k; i++) p->w[i] = next(&state);
    for (int i = 0; i < ROWS * k; i++) p->x[i] = next(&state);
    for (int i = 0; i < ROWS * N; i++) p->y[i] = next(&state);
    sk_pack(p->w, SK_F32, k, N, k, dtype, p->packed, p->scales, p->scratch, 1);
}

/* y of `rows` rows from `row` on and of every panel, `most` at once, k in two parts where it may be parted, adding to y
 * if `from_y`. */
static void solve(const sk_kernels *kernels, int64_t dtype, problem *p, int64_t row, int64_t rows, int64_t most,
                  int from_y) {
    const int64_t whole = k_of(dtype);
    int64_t stride = whole * (int64_t)sizeof(float) + 64;
    for (int64_t r = 0; r < rows; r++)
        if (kernels->prepare)
            kernels->prepare(p->x + (row + r) * whole, whole, p->prepared + r * stride);
        else
            memcpy(p->prepared + r * stride, p->x + (row + r) * whole, whole * sizeof(float));
    int64_t all = sk_padded(whole, dtype), part = dtype == SK_INT8 ? all : whole / 4 * 2, panel_bytes = sk_panel_bytes(whole, dtype);
    for (int64_t panel = 0, panels; panel < PANELS; panel += panels) {
        panels = most;
        while (panels > PANELS - panel) panels /= 2;
        for (int64_t k = 0; k < all; k += part) {
            int64_t length = all - k < part ? all - k : part;
            const char *w = p->packed + panel * panel_bytes + k * SK_PANEL * lk_element_size(dtype);
            int64_t turns = length / sk_turn(dtype);
            const sk_ahead ahead[] = {{w, 0, 0, turns / 2}, {w, sk_turn_bytes(dtype), panel_bytes, turns - turns / 2}};
            sk_tile t = {
                .w = w, .panel_bytes = panel_bytes, .scales = p->scales + panel * SK_PANEL, .panels = panels,
                .k = length, .x = p->prepared + k * kernels->x_bytes / SK_BLOCK, .x_stride = stride, .rows = rows,
                .y = p->y + row * N + panel * SK_PANEL, .ldy = N, .from_y = from_y || k > 0,
                .ahead = ahead,
            };
            kernels->tile(&t);
        }
    }
}

static void solve_all(const sk_kernels *kernels, int64_t dtype, problem *p) {
    fill(p, dtype);
    for (int64_t rows = 1; rows <= kernels->rows && rows <= ROWS; rows++) {
        solve(kernels, dtype, p, 0, rows, sk_tile_panels(kernels, rows), rows % 2);
        solve(kernels, dtype, p, 0, rows, kernels->side, 1);
    }
    for (int64_t row = 0; row < ROWS; row += 2) solve(kernels, dtype, p, row, 2, sk_tile_panels(kernels, 2), 1);
}

int sk_linear_agrees(const sk_kernels *candidate, int64_t dtype) {
    problem *expected = aligned_alloc(64, (sizeof *expected + 63) / 64 * 64);
    problem *actual = aligned_alloc(64, (sizeof *actual + 63) / 64 * 64);
    int agrees = expected && actual;
    if (agrees) {
        sk_kernels reference = candidate->truth ? *candidate->truth : sk_portable[dtype];
        reference.rows = candidate->rows;
        solve_all(&reference, dtype, expected);
        solve_all(candidate, dtype, actual);
        /* A few sums of 82 or 146 products below 1. Rounding x to bfloat16 costs 2^-9 of each product. */
        float tolerance = candidate->prepare && dtype == SK_BF16 ? 0.03f : 1e-4f;
        for (int i = 0; i < ROWS * N; i++)
            if (!(fabsf(expected->y[i] - actual->y[i]) <= tolerance * (1 + fabsf(expected->y[i])))) agrees = 0;
    }
    free(expected);
    free(actual);
    return agrees;
}
