/* AVX2 + FMA kernels.
 *
 * 6 rows x 16 columns: 12 accumulators, 2 registers of weights, 1 of x. Fewer rows take 2 or 4 panels at once, so that
 * the latency of an FMA (4 cycles, 2 a cycle) stays covered and several streams of memory are open. bfloat16 weights
 * are widened in registers, a shift or a mask for 8 of them. Instructions count: where another process has the other
 * hardware thread of a core, it has half of the decoder too and 3 instructions per cycle are left, and with 27 for the
 * 12 FMAs of one k (as gcc 12 makes of a plain loop) a third of the peak is gone. The loop over one panel takes 23.
 * 8-bit weights: linear_int8_avx2.c. / */
#if defined(__x86_64__)
#include "linear_avx2.h"

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

/* sum += value * w. Written out because gcc 12, given the intrinsic, lets sums wander between registers and spills half
 * of the 12: 60 % of this loop's speed. */
INLINE void multiply_add(__m256 *sum, __m256 value, __m256 w) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(value), "x"(w));
}

/* Pairs of a turn, and bytes of a row of x in a pair. */
enum { TURN = 4, pair_of_x = 8 };

INLINE int64_t pair_bytes(const int dtype) { return dtype == SK_F32 ? 128 : 64; }

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

/* One panel. */
INLINE void multiply_panel(const int dtype, const int rows, __m256 sum[6][2], const sk_tile *t, __m256 mask,
                           const char *const *x) {
    const int64_t turn_bytes = TURN * pair_bytes(dtype), turn_of_x = TURN * pair_of_x;
    const int64_t turns = t->k / (2 * TURN) * turn_of_x, last = t->k / 2 * pair_of_x;
    const char *w = t->w;
    int64_t at = 0;
    for (const sk_ahead *next = t->ahead; at < turns; next++) {
        const char *ahead = next->at;
        const int64_t end = at + next->turns * turn_of_x, step = next->step;
        for (; at < end; at += turn_of_x, w += turn_bytes, ahead += step) {
#pragma GCC unroll 8
            for (int line = 0; line < turn_bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
#pragma GCC unroll 4
            for (int i = 0; i < TURN; i++)
#pragma GCC unroll 2
                for (int odd = 0; odd < 2; odd++)
                    multiply_column(dtype, rows, sum, w + i * pair_bytes(dtype), odd, mask, x, at + i * pair_of_x);
        }
    }
    for (; at < last; at += pair_of_x, w += pair_bytes(dtype))
        for (int odd = 0; odd < 2; odd++) multiply_column(dtype, rows, sum, w, odd, mask, x, at);
}

/* One pair of k for two or four panels; as many lines of `ahead` are fetched for each as its weights have. */
INLINE void multiply_pair(const int dtype, const int rows, const int panels, sums sum, const char *w,
                          int64_t panel_bytes, const char *ahead, int64_t panel_step, __m256 mask,
                          const char *const *x, int64_t at) {
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++)
        for (int line = 0; line < pair_bytes(dtype); line += 64)
            _mm_prefetch(ahead + p * panel_step + line, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            multiply_column(dtype, rows, sum[p], w + p * panel_bytes, odd, mask, x, at);
}

/* Two or four panels, few rows. */
INLINE void multiply_panels(const int dtype, const int rows, const int panels, sums sum, const sk_tile *t, __m256 mask,
                            const char *const *x) {
    const int64_t panel_bytes = t->panel_bytes, turns = t->k / (2 * TURN) * 2 * TURN;
    const char *w = t->w;
    int64_t k = 0;
    for (const sk_ahead *next = t->ahead; k < turns; next++) {
        const char *ahead = next->at;
        const int64_t end = k + next->turns * 2 * TURN, panel_step = next->panel_step;
        const int64_t skip = next->step - TURN * pair_bytes(dtype);
        for (; k < end; ahead += skip)
#pragma GCC unroll 1
            for (int i = 0; i < TURN; i++, k += 2, w += pair_bytes(dtype), ahead += pair_bytes(dtype))
                multiply_pair(dtype, rows, panels, sum, w, panel_bytes, ahead, panel_step, mask, x, 4 * k);
    }
    for (; k < t->k; k += 2, w += pair_bytes(dtype))
        multiply_pair(dtype, rows, panels, sum, w, panel_bytes, w, panel_bytes, mask, x, 4 * k);
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

/* A function each: in one of a hundred loops gcc allocates registers without regard to loops, and sums are spilled. */
#define FLOAT_TILE(dtype, rows, panels)                                                                                \
    AVX2 static __attribute__((noinline)) void dtype##_##rows##_##panels(const sk_tile *t) {                           \
        tile_float(dtype, rows, panels, t);                                                                            \
    }

#define FLOAT_TILES(dtype, name)                                                                                       \
    FLOAT_TILE(dtype, 1, 4) FLOAT_TILE(dtype, 1, 2) FLOAT_TILE(dtype, 1, 1) FLOAT_TILE(dtype, 2, 2)                    \
    FLOAT_TILE(dtype, 2, 1) FLOAT_TILE(dtype, 3, 1) FLOAT_TILE(dtype, 4, 1) FLOAT_TILE(dtype, 5, 1)                    \
    FLOAT_TILE(dtype, 6, 1)                                                                                            \
    static void name(const sk_tile *t) {                                                                               \
        switch (t->rows * 8 + t->panels) {                                                                             \
        case 12: dtype##_1_4(t); break;                                                                                \
        case 10: dtype##_1_2(t); break;                                                                                \
        case 9: dtype##_1_1(t); break;                                                                                 \
        case 18: dtype##_2_2(t); break;                                                                                \
        case 17: dtype##_2_1(t); break;                                                                                \
        case 25: dtype##_3_1(t); break;                                                                                \
        case 33: dtype##_4_1(t); break;                                                                                \
        case 41: dtype##_5_1(t); break;                                                                                \
        case 49: dtype##_6_1(t); break;                                                                                \
        }                                                                                                              \
    }

FLOAT_TILES(SK_F32, tile_f32)
FLOAT_TILES(SK_BF16, tile_bf16)

const sk_kernels sk_avx2[SK_DTYPES] = {
    {"avx2", 6, {4, 2, 1, 1}, 1, 64, SK_F32, 0, tile_f32, 0},
    {"avx2", 6, {4, 2, 1, 1}, 1, 64, SK_F32, 0, tile_bf16, 0},
    {"avx2", 12, {4, 2, 1, 1}, 1, sizeof(sk_block), SK_F32, sk_avx2_quantise_row, sk_avx2_tile_int8, 0},
};
#endif
