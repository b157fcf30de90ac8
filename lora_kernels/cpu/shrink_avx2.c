/* AVX2 + FMA: pack and shrink.
 *
 * 4 ranks x 3 rows of dot products, 12 accumulators of 8 lanes: 7 loads for 12 FMAs, bound by the FMA units.
 * One row takes 8 ranks at once, so that the FMA latency (4 cycles, 2 a cycle) stays covered.
 *
 * bfloat16 weights are widened with one shift (odd lanes: one mask) per 8 values by taking the even and the odd
 * elements of 16 apart; x is packed in that order.
 */
#if defined(__x86_64__)
#include <string.h>

#include "avx2.h"

/* 16 values of x, the even ones before the odd ones. */
INLINE pair split16(const void *x, int64_t at, int bf16) {
    pair p = load16(x, at, bf16);
    if (bf16) return p;
    __m256 even = _mm256_shuffle_ps(p.first, p.second, 0x88), odd = _mm256_shuffle_ps(p.first, p.second, 0xdd);
    /* The shuffle works within 128 bits: 0 2 8 10 | 4 6 12 14. */
    p.first = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
    p.second = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
    return p;
}

INLINE void split_row(const void *x, const int x_bf16, int64_t k, float *row) {
    for (int64_t i = 0; i < k; i += 16) {
        pair p = split16(x, i, x_bf16);
        _mm256_storeu_ps(row + i, p.first);
        _mm256_storeu_ps(row + i + 8, p.second);
    }
}

AVX2 static void pack_row(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out) {
    float *row = out;
    const float *x32 = x;
    const uint16_t *x16 = x;
    int64_t whole = k / 16 * 16;
    if (dtype == LK_BF16) {
        if (x_dtype == LK_BF16)
            split_row(x, 1, whole, row);
        else
            split_row(x, 0, whole, row);
        memset(row + whole, 0, (size_t)(padded_k - whole) * sizeof(float));
        for (int64_t i = whole; i < k; i++)
            row[whole + (i - whole) / 2 + 8 * (i & 1)] = x_dtype == LK_BF16 ? lk_bf16_to_f32(x16[i]) : x32[i];
    } else {
        for (int64_t i = 0; i < k; i++) row[i] = x_dtype == LK_BF16 ? lk_bf16_to_f32(x16[i]) : x32[i];
        memset(row + k, 0, (size_t)(padded_k - k) * sizeof(float));
    }
}

/* Sums of four accumulators, each added up in the same order. */
INLINE __m128 sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 four = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

typedef __m256 sums[8][3];  /* of rank and row; those that a tile uses stay in registers */

/* Half by half of 16 columns: 12 sums, 3 registers of x and one of weights are all there are. */
INLINE void multiply_f32(const int ranks, const int rows, sums acc, const float *a, int64_t padded_k, int64_t k,
                         const void *const *x) {
#pragma GCC unroll 2
    for (int half = 0; half < 16; half += 8) {
        __m256 row[3];
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) row[t] = _mm256_loadu_ps((const float *)x[t] + k + half);
#pragma GCC unroll 8
        for (int r = 0; r < ranks; r++) {
            __m256 w = _mm256_loadu_ps(a + r * padded_k + k + half);
#pragma GCC unroll 3
            for (int t = 0; t < rows; t++) multiply_add(&acc[r][t], row[t], w);
        }
    }
}

INLINE void multiply_bf16(const int ranks, const int rows, sums acc, const uint16_t *a, int64_t padded_k, int64_t k,
                          const void *const *x) {
    pair row[3];
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++) row[t] = load16(x[t], k, 0);
#pragma GCC unroll 8
    for (int r = 0; r < ranks; r++) {
        pair w = load16(a, r * padded_k + k, 1);
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) {
            acc[r][t] = _mm256_fmadd_ps(w.first, row[t].first, acc[r][t]);
            acc[r][t] = _mm256_fmadd_ps(w.second, row[t].second, acc[r][t]);
        }
    }
}

/* Ranks from `first` on. */
INLINE void dot_tile(const int ranks, const int rows, const int bf16, const lk_unit *unit, int64_t first,
                     int64_t padded_k, const void *const *x, float *const *v) {
    enum { LINE = 64 };
    const int64_t size = bf16 ? 2 : 4;
    const char *a = (const char *)unit->a + first * padded_k * size;
    const char *ahead = (const char *)unit->ahead + first * padded_k * size;
    sums acc;
#pragma GCC unroll 8
    for (int r = 0; r < ranks; r++)
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) acc[r][t] = _mm256_setzero_ps();
    for (int64_t k = 0; k < padded_k; k += 16) {
        /* One row is computed faster than its weights come, and 8 short streams leave nothing to guess from. */
        if (rows == 1 && k * size % LINE == 0)
#pragma GCC unroll 8
            for (int r = 0; r < ranks; r++) _mm_prefetch(ahead + (r * padded_k + k) * size, _MM_HINT_T0);
        if (bf16)
            multiply_bf16(ranks, rows, acc, (const uint16_t *)a, padded_k, k, x);
        else
            multiply_f32(ranks, rows, acc, (const float *)a, padded_k, k, x);
    }
    __m128 factor = _mm_set1_ps(unit->scale);
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 2
        for (int r = 0; r < ranks; r += 4)
            _mm_storeu_ps(v[t] + unit->v_offset + first + r,
                          _mm_mul_ps(factor, sum4(acc[r][t], acc[r + 1][t], acc[r + 2][t], acc[r + 3][t])));
}

INLINE void shrink_typed(const int bf16, const lk_unit *unit, int64_t padded_k, const void *const *x, int rows,
                         float *const *v) {
    if (rows == 1 && unit->ranks > 4) {
        dot_tile(8, 1, bf16, unit, 0, padded_k, x, v);
        return;
    }
    for (int64_t r = 0; r < unit->ranks; r += 4) {
        int t = 0;
        for (; t + 3 <= rows; t += 3) dot_tile(4, 3, bf16, unit, r, padded_k, x + t, v + t);
        if (rows - t == 2)
            dot_tile(4, 2, bf16, unit, r, padded_k, x + t, v + t);
        else if (rows - t == 1)
            dot_tile(4, 1, bf16, unit, r, padded_k, x + t, v + t);
    }
}

AVX2 static void shrink(const lk_unit *unit, int64_t dtype, int64_t padded_k, const void *const *x, int rows,
                        float *const *v) {
    if (dtype == LK_BF16)
        shrink_typed(1, unit, padded_k, x, rows, v);
    else
        shrink_typed(0, unit, padded_k, x, rows, v);
}

const lk_kernels lk_avx2 = {"avx2", {LK_F32, -1}, pack_row, shrink, lk_expand_avx2};
#endif
