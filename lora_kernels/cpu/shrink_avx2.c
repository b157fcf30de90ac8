/* AVX2 + FMA: shrink.
 *
 * 4 ranks x 3 rows of dot products, 12 accumulators of 8 lanes: of 16 columns one half after the other, 7 loads for 12
 * FMAs, so that nothing but the sums has to stay in registers (with all 16 at once gcc takes x from memory, and the
 * loads are the limit: a quarter slower). One row takes 8 ranks at once, so that the FMA latency (4 cycles, 2 a cycle)
 * stays covered.
 *
 * bfloat16 weights are widened with one shift or one mask per 8 values, 8-bit ones with a widening and a conversion.
 * / */
#if defined(__x86_64__)
#include "avx2.h"

/* How far ahead of use one row's weights are fetched, into the second-level cache: whole blocks. */
enum { AHEAD_BYTES = 2048 };

/* Sums of four accumulators, each added up in the same order. */
INLINE __m128 sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 four = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

typedef __m256 sums[8][3];  /* of rank and row; those that a tile uses stay in registers */

static const uint32_t high_halves[8] __attribute__((aligned(32))) = {
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};

/* The first or second 8 of 16 weights. `mask` is in a register only where one is left for it. */
INLINE __m256 weights8(const int dtype, const char *at, const int half, const int rows, __m256 mask) {
    if (dtype == LK_F32) return _mm256_loadu_ps((const float *)at + 8 * half);
    if (dtype == LK_I8) return load8_i8(at + 8 * half);
    __m256i both = _mm256_loadu_si256((const __m256i *)at);
    if (!half) return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    __m256 high;
    if (rows < 3)
        __asm__("vandps %1, %2, %0" : "=x"(high) : "m"(*(const __m256 *)at), "x"(mask));
    else
        __asm__("vandps %1, %2, %0" : "=x"(high) : "m"(*(const __m256 *)high_halves), "x"(both));
    return high;
}

/* 16 columns, half by half: 12 sums, 3 registers of x and one of weights are all there are. */
INLINE void multiply16(const int ranks, const int rows, const int dtype, sums acc, const char *a, const char *const *x,
                       int64_t k, __m256 mask) {
    const int64_t stride = LK_A_BLOCK * lk_element_size(dtype);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        __m256 row[3];
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) row[t] = _mm256_loadu_ps((const float *)(x[t] + k) + 8 * half);
#pragma GCC unroll 8
        for (int r = 0; r < ranks; r++) {
            __m256 w = weights8(dtype, a + r * stride, half, rows, mask);
#pragma GCC unroll 3
            for (int t = 0; t < rows; t++) multiply_add(&acc[r][t], row[t], w);
        }
    }
}

/* Ranks from `first` on. */
INLINE void dot_tile(const int ranks, const int rows, const int dtype, const lk_unit *unit, int64_t first,
                     int64_t padded_k, const void *const *x, float *const *v) {
    const int64_t size = lk_element_size(dtype), block = LK_UNIT * LK_A_BLOCK * size, column = 16 * sizeof(float);
    const char *a = (const char *)unit->a + first * LK_A_BLOCK * size, *ahead = (const char *)unit->a + AHEAD_BYTES, *in[3];
    const char *end = (const char *)unit->a + padded_k * LK_UNIT * size;
    const __m256 mask = _mm256_load_ps((const float *)high_halves);
    sums acc;
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++) {
        in[t] = x[t];
#pragma GCC unroll 8
        for (int r = 0; r < ranks; r++) acc[r][t] = _mm256_setzero_ps();
    }
    for (int64_t k = 0; k < padded_k * (int64_t)sizeof(float); k += 2 * column, a += block) {
        /* One row is computed faster than its weights come. */
        if (rows == 1) {
            if (ahead == end) ahead = unit->ahead;
#pragma GCC unroll 16
            for (int64_t line = 0; line < block; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T1);
            ahead += block;
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) multiply16(ranks, rows, dtype, acc, a + i * 16 * size, in, k + i * column, mask);
    }
#pragma GCC unroll 2
    for (int r = 0; r < ranks; r += 4) {
        __m128 factor = _mm_mul_ps(_mm_set1_ps(unit->scale), _mm_loadu_ps(unit->rank_scales + first + r));
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++)
            _mm_storeu_ps(v[t] + unit->v_offset + first + r,
                          _mm_mul_ps(factor, sum4(acc[r][t], acc[r + 1][t], acc[r + 2][t], acc[r + 3][t])));
    }
}

/* A function each: in one of many loops gcc allocates registers without regard to them. */
#define DOT_TILE(name, ranks, rows, dtype)                                                                       \
    AVX2 static __attribute__((noinline)) void name(const lk_unit *unit, int64_t first, int64_t padded_k,        \
                                                    const void *const *x, float *const *v) {                     \
        dot_tile(ranks, rows, dtype, unit, first, padded_k, x, v);                                               \
    }
#define DOT_TILES(type, dtype)               \
    DOT_TILE(dot_8_1_##type, 8, 1, dtype)    \
    DOT_TILE(dot_4_1_##type, 4, 1, dtype)    \
    DOT_TILE(dot_4_2_##type, 4, 2, dtype)    \
    DOT_TILE(dot_4_3_##type, 4, 3, dtype)
DOT_TILES(f32, LK_F32)
DOT_TILES(bf16, LK_BF16)
DOT_TILES(i8, LK_I8)

typedef void dot_function(const lk_unit *unit, int64_t first, int64_t padded_k, const void *const *x, float *const *v);

static void shrink(const lk_unit *unit, int64_t dtype, int64_t padded_k, const void *const *x, int rows,
                   float *const *v, void *wide) {
    static dot_function *const lone[LK_DTYPES] = {dot_8_1_f32, dot_8_1_bf16, dot_8_1_i8};
    static dot_function *const some[LK_DTYPES][3] = {{dot_4_1_f32, dot_4_2_f32, dot_4_3_f32},
                                                     {dot_4_1_bf16, dot_4_2_bf16, dot_4_3_bf16},
                                                     {dot_4_1_i8, dot_4_2_i8, dot_4_3_i8}};
    (void)wide;
    if (rows == 1 && unit->ranks > 4) {
        lone[dtype](unit, 0, padded_k, x, v);
        return;
    }
    for (int64_t r = 0; r < unit->ranks; r += 4)
        for (int t = 0, count; t < rows; t += count) {
            count = rows - t < 3 ? rows - t : 3;
            some[dtype][count - 1](unit, r, padded_k, x + t, v + t);
        }
}

const lk_kernels lk_avx2 = {"avx2", 0, LK_F32, lk_pack_f32, shrink, lk_expand_avx2};
#endif
