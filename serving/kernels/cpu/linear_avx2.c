/* AVX2 + FMA kernels.
 *
 * 6 rows x 16 columns: 12 accumulators, 2 registers of weights, 1 of x. Fewer rows take 2 or 4 panels at once, so that
 * the latency of an FMA (4 cycles, 2 a cycle) stays covered and several streams of memory are open.
 * bfloat16 weights are widened in registers, a shift or a mask for 8 of them.
 * Instructions count: where the other hardware thread of a core belongs to somebody else, half of the decoder is theirs,
 * 3 instructions a cycle are left, and with 27 for the 12 FMAs of one k (as gcc 12 makes of a plain loop) a third of the
 * peak is gone. The loop over one panel takes 23.
 * 8-bit weights: linear_int8_avx2.c.
 */
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
/* It would keep a pointer for each offset of an unrolled loop, most of them on the stack. */
#pragma GCC optimize("no-ivopts")
#endif
#include <immintrin.h>

#include "linear_kernels.h"

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))

static const uint32_t odd_mask[8] __attribute__((aligned(32))) = {
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};

/* 8 of the 16 columns: half 0 or 1 of a panel, for the even or the odd k of a pair. */
INLINE __m256 weights(const int dtype, const char *pair, int odd, int half, __m256 mask) {
    if (dtype == SK_F32) return _mm256_load_ps((const float *)pair + (odd * 2 + half) * 8);
    const __m256i *both = (const __m256i *)pair + half;
    if (!odd) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_load_si256(both), 16));
    __m256 floats;
    __asm__("vandps %1, %2, %0" : "=x"(floats) : "m"(*both), "x"(mask));
    return floats;
}

/* sum += value * w. Written out because gcc 12, given the intrinsic, lets sums wander between registers and spills half of
 * the 12: 60 % of this loop's speed. */
INLINE void multiply_add(__m256 *sum, __m256 value, __m256 w) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(value), "x"(w));
}

typedef __m256 sums[4][6][2];  /* of panel, row, half: those that a tile uses stay in registers */

/* One k, for one panel; `at` is its place in the rows of x. */
INLINE void multiply_column(const int dtype, const int rows, __m256 sum[6][2], const char *pair, int odd, __m256 mask,
                            const char *const *x, int64_t at) {
    __m256 w0 = weights(dtype, pair, odd, 0, mask), w1 = weights(dtype, pair, odd, 1, mask);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        __m256 value = _mm256_broadcast_ss((const float *)(x[r] + at) + odd);
        multiply_add(&sum[r][0], value, w0);
        multiply_add(&sum[r][1], value, w1);
    }
}

/* One panel, four pairs a turn. */
INLINE void multiply_panel(const int dtype, const int rows, __m256 sum[6][2], const sk_tile *t, __m256 mask,
                           const char *const *x) {
    enum { TURN = 4 };
    const int64_t pair_bytes = dtype == SK_F32 ? 128 : 64, pair_of_x = 8, ahead_step = TURN * t->ahead_step;
    const int64_t turns = t->k / (2 * TURN) * TURN * pair_of_x, last = t->k / 2 * pair_of_x;
    const char *w = t->w, *ahead = t->ahead;
    int64_t at = 0, end = t->turn / (2 * TURN) * TURN * pair_of_x;
    for (int part = 0; part < 2; part++) {
        for (; at < end; at += TURN * pair_of_x, w += TURN * pair_bytes, ahead += ahead_step) {
#pragma GCC unroll 8
            for (int line = 0; line < TURN * pair_bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
#pragma GCC unroll 4
            for (int i = 0; i < TURN; i++)
#pragma GCC unroll 2
                for (int odd = 0; odd < 2; odd++)
                    multiply_column(dtype, rows, sum, w + i * pair_bytes, odd, mask, x, at + i * pair_of_x);
        }
        ahead = t->ahead_then;
        end = turns;
    }
    for (; at < last; at += pair_of_x, w += pair_bytes)
        for (int odd = 0; odd < 2; odd++) multiply_column(dtype, rows, sum, w, odd, mask, x, at);
}

/* Two or four panels, few rows. */
INLINE void multiply_panels(const int dtype, const int rows, const int panels, sums sum, const sk_tile *t, __m256 mask,
                            const char *const *x) {
    const int64_t pair_bytes = dtype == SK_F32 ? 128 : 64, panel_bytes = t->panel_bytes;
    const char *w = t->w, *ahead = t->ahead;
    int64_t k = 0, end = t->turn;
    for (int part = 0; part < 2; part++) {
        for (; k < end; k += 2, w += pair_bytes, ahead += t->ahead_step) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                for (int line = 0; line < pair_bytes; line += 64)
                    _mm_prefetch(ahead + p * panel_bytes + line, _MM_HINT_T0);
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 4
                for (int p = 0; p < panels; p++)
                    multiply_column(dtype, rows, sum[p], w + p * panel_bytes, odd, mask, x, 4 * k);
        }
        ahead = t->ahead_then;
        end = t->k;
    }
}

INLINE void tile_float(const int dtype, const int rows, const int panels, const sk_tile *t) {
    sums sum;
    const char *x[6];
    const __m256 mask = _mm256_load_ps((const float *)odd_mask);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        x[r] = t->x + r * t->x_stride;
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                sum[p][r][h] = t->from_y ? _mm256_loadu_ps(t->y + r * t->ldy + p * SK_PANEL + h * 8)
                                         : _mm256_setzero_ps();
    }
    if (panels == 1)
        multiply_panel(dtype, rows, sum[0], t, mask, x);
    else
        multiply_panels(dtype, rows, panels, sum, t, mask, x);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) _mm256_storeu_ps(t->y + r * t->ldy + p * SK_PANEL + h * 8, sum[p][r][h]);
}

#define FLOAT_TILES(dtype)                                                                                      \
    switch (t->rows * 8 + t->panels) {                                                                          \
    case 12: tile_float(dtype, 1, 4, t); break;                                                                 \
    case 10: tile_float(dtype, 1, 2, t); break;                                                                 \
    case 9: tile_float(dtype, 1, 1, t); break;                                                                  \
    case 18: tile_float(dtype, 2, 2, t); break;                                                                 \
    case 17: tile_float(dtype, 2, 1, t); break;                                                                 \
    case 25: tile_float(dtype, 3, 1, t); break;                                                                 \
    case 33: tile_float(dtype, 4, 1, t); break;                                                                 \
    case 41: tile_float(dtype, 5, 1, t); break;                                                                 \
    case 49: tile_float(dtype, 6, 1, t); break;                                                                 \
    }

AVX2 static void tile_f32(const sk_tile *t) { FLOAT_TILES(SK_F32) }

AVX2 static void tile_bf16(const sk_tile *t) { FLOAT_TILES(SK_BF16) }

const sk_kernels sk_avx2[SK_DTYPES] = {
    {"avx2", 6, {4, 2, 1, 1}, 64, 0, tile_f32},
    {"avx2", 6, {4, 2, 1, 1}, 64, 0, tile_bf16},
    {"avx2", 12, {4, 2, 1, 1}, sizeof(sk_block), sk_avx2_quantise_row, sk_avx2_tile_int8},
};
#endif
