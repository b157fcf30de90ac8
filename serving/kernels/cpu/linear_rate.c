/* How fast a kernel set computes on this very processor: whether steps wait for weights or for products depends on it,
 * by a factor of two between two generations with the same instructions. */
#define _POSIX_C_SOURCE 199309L
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "linear_job.h"

/* Operands that fit a first-level cache with room to spare; how many tiles are timed together, for how long in all. */
enum { K = 128, TILES = 4, NANOSECONDS = 200000 };

/* Bandwidth of one core while others read too: 16 to 25 GB/s on servers of the years from 2020 on. */
static const double BYTES_A_SECOND = 20e9;

typedef struct {
    _Alignas(64) char w[4 * SK_PANEL * K * sizeof(float)];
    _Alignas(64) char x[SK_TILE_ROWS * (K * sizeof(float) + 64)];
    float y[SK_TILE_ROWS * 4 * SK_PANEL], scales[4 * SK_PANEL], row[K];
} operands;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Nanoseconds of a tile: the least, as other processes can only add to it. */
static double time_tile(const sk_kernels *kernels, const sk_tile *t) {
    double start = now(), before = start, least = NANOSECONDS;
    while (before - start < NANOSECONDS) {
        for (int i = 0; i < TILES; i++) kernels->tile(t);
        double after = now(), each = (after - before) / TILES;
        if (each < least) least = each;
        before = after;
    }
    return least;
}

int64_t sk_linear_bound_rows(const sk_kernels *kernels, int64_t dtype) {
    operands *o = aligned_alloc(64, (sizeof *o + 63) / 64 * 64);
    if (!o) return 0;
    memset(o, 0, sizeof *o);
    const int64_t stride = K * sizeof(float) + 64, panels = kernels->side, rows = kernels->rows;
    for (int64_t row = 0; row < rows; row++)
        if (kernels->prepare) kernels->prepare(o->row, K, o->x + row * stride);
    const sk_ahead ahead[] = {{o->w, 0, 0, K / sk_turn(dtype)}};
    const sk_tile t = {
        .w = o->w, .panel_bytes = sk_panel_bytes(K, dtype), .scales = o->scales, .panels = panels, .k = K, .x = o->x,
        .x_stride = stride, .rows = rows, .y = o->y, .ldy = panels * SK_PANEL, .ahead = ahead,
    };
    double weights = (double)(panels * sk_panel_bytes(K, dtype)) / BYTES_A_SECOND * 1e9;
    double each_row = time_tile(kernels, &t) / (double)rows;
    free(o);
    return (int64_t)(weights / each_row);
}
