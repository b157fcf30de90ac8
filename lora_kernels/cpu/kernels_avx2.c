/* AVX2 + FMA kernels.
 *
 * Shrink: 4 ranks x 3 rows of dot products, 12 accumulators of 8 lanes: 7 loads for 12 FMAs, bound by the FMA units.
 * One row takes 8 ranks at once, so that the FMA latency (4 cycles, 2 a cycle) stays covered.
 * Expand: 6 rows x 16 columns; one row takes 64 columns for the same reason.
 *
 * bfloat16 weights are widened with one shift (odd lanes: one mask) per 8 values by taking the even and the odd
 * elements of 16 apart. Shrink gets x packed in that order; expand restores the order once, before y is written.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "sgmv.h"

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))

typedef struct {
    __m256 first, second;  /* columns 0-7 and 8-15, or the even and the odd columns of 16 bfloat16 */
} pair;

INLINE pair load16(const void *data, int64_t at, int bf16) {
    pair p;
    if (bf16) {
        __m256i both = _mm256_loadu_si256((const __m256i *)((const uint16_t *)data + at));
        p.first = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        p.second = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
    } else {
        p.first = _mm256_loadu_ps((const float *)data + at);
        p.second = _mm256_loadu_ps((const float *)data + at + 8);
    }
    return p;
}

AVX2 static void pack_row(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out) {
    float *row = out;
    const float *x32 = x;
    const uint16_t *x16 = x;
    int64_t whole = k / 16 * 16;
    if (dtype == LK_BF16) {
        for (int64_t i = 0; i < whole; i += 16) {
            if (x_dtype == LK_BF16) {
                pair p = load16(x, i, 1);
                _mm256_storeu_ps(row + i, p.first);
                _mm256_storeu_ps(row + i + 8, p.second);
            } else {
                for (int j = 0; j < 8; j++) {
                    row[i + j] = x32[i + 2 * j];
                    row[i + 8 + j] = x32[i + 2 * j + 1];
                }
            }
        }
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

INLINE void dot_tile(const int ranks, const int rows, const int bf16, const void *a, int64_t padded_k,
                     const void *const *x, float scale, float *const *v, int64_t v_offset) {
    __m256 acc[8][3];
#pragma GCC unroll 8
    for (int r = 0; r < ranks; r++)
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) acc[r][t] = _mm256_setzero_ps();
    for (int64_t k = 0; k < padded_k; k += 16) {
        pair row[3];
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) row[t] = load16(x[t], k, 0);
#pragma GCC unroll 8
        for (int r = 0; r < ranks; r++) {
            pair w = load16(a, r * padded_k + k, bf16);
#pragma GCC unroll 3
            for (int t = 0; t < rows; t++) {
                acc[r][t] = _mm256_fmadd_ps(w.first, row[t].first, acc[r][t]);
                acc[r][t] = _mm256_fmadd_ps(w.second, row[t].second, acc[r][t]);
            }
        }
    }
    __m128 factor = _mm_set1_ps(scale);
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 2
        for (int r = 0; r < ranks; r += 4)
            _mm_storeu_ps(v[t] + v_offset + r,
                          _mm_mul_ps(factor, sum4(acc[r][t], acc[r + 1][t], acc[r + 2][t], acc[r + 3][t])));
}

INLINE void shrink_typed(const int bf16, const char *a, int64_t padded_k, int64_t ranks, const void *const *x, int rows,
                         float scale, float *const *v, int64_t v_offset) {
    int64_t rank_bytes = padded_k * (bf16 ? 2 : 4);
    int64_t r = 0;
    if (rows == 1)
        for (; r + 4 < ranks; r += 8)
            dot_tile(8, 1, bf16, a + r * rank_bytes, padded_k, x, scale, v, v_offset + r);
    for (; r < ranks; r += 4) {
        int t = 0;
        for (; t + 3 <= rows; t += 3)
            dot_tile(4, 3, bf16, a + r * rank_bytes, padded_k, x + t, scale, v + t, v_offset + r);
        if (rows - t == 2)
            dot_tile(4, 2, bf16, a + r * rank_bytes, padded_k, x + t, scale, v + t, v_offset + r);
        else if (rows - t == 1)
            dot_tile(4, 1, bf16, a + r * rank_bytes, padded_k, x + t, scale, v + t, v_offset + r);
    }
}

AVX2 static void shrink(const void *a, int64_t dtype, int64_t padded_k, int64_t ranks, const void *const *x, int rows,
                        float scale, float *const *v, int64_t v_offset) {
    if (dtype == LK_BF16)
        shrink_typed(1, a, padded_k, ranks, x, rows, scale, v, v_offset);
    else
        shrink_typed(0, a, padded_k, ranks, x, rows, scale, v, v_offset);
}

/* Round to nearest even, 8 values; NaN stays NaN. */
INLINE __m256i round_bf16(__m256 value) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 unordered = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    rounded = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(nan), unordered));
    return _mm256_srli_epi32(rounded, 16);
}

INLINE void add16(char *y, int y_bf16, __m256 low, __m256 high) {
    if (y_bf16) {
        __m256i both = _mm256_loadu_si256((const __m256i *)y);
        __m256i l = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(both)), 16);
        __m256i h = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(both, 1)), 16);
        l = round_bf16(_mm256_add_ps(_mm256_castsi256_ps(l), low));
        h = round_bf16(_mm256_add_ps(_mm256_castsi256_ps(h), high));
        /* packus works per 128-bit half: put the quarters back in order. */
        _mm256_storeu_si256((__m256i *)y, _mm256_permute4x64_epi64(_mm256_packus_epi32(l, h), 0xd8));
    } else {
        float *out = (float *)y;
        _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), low));
        _mm256_storeu_ps(out + 8, _mm256_add_ps(_mm256_loadu_ps(out + 8), high));
    }
}

/* y[0..columns) += the pair, in column order. */
INLINE void add_pair(char *y, int64_t y_dtype, pair sum, int bf16, int64_t columns) {
    __m256 low = sum.first, high = sum.second;
    if (bf16) {
        __m256 a = _mm256_unpacklo_ps(sum.first, sum.second), b = _mm256_unpackhi_ps(sum.first, sum.second);
        low = _mm256_permute2f128_ps(a, b, 0x20);
        high = _mm256_permute2f128_ps(a, b, 0x31);
    }
    if (columns >= 16) {
        add16(y, y_dtype == LK_BF16, low, high);
    } else {
        char block[64];
        size_t size = (size_t)(columns * lk_element_size(y_dtype));
        memset(block, 0, sizeof block);
        memcpy(block, y, size);
        add16(block, y_dtype == LK_BF16, low, high);
        memcpy(y, block, size);
    }
}

AVX2 static __attribute__((noinline)) void add_sums(int rows, int blocks, pair (*sum)[4], int bf16, char *const *y,
                                                    int64_t y_dtype, int64_t y_offset, int64_t columns) {
    for (int t = 0; t < rows; t++)
        for (int i = 0; i < blocks; i++)
            add_pair(y[t] + (y_offset + 16 * i) * lk_element_size(y_dtype), y_dtype, sum[t][i], bf16,
                     columns - 16 * i);
}

INLINE void expand_tile(const int rows, const int blocks, const int bf16, const void *const *b, int64_t n, int64_t c,
                        const int32_t *ranks, int64_t pages, int64_t page_size, const float *const *v,
                        int64_t v_offset, char *const *y, int64_t y_dtype, int64_t y_offset, int64_t columns) {
    pair sum[6][4];
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++) sum[t][i].first = sum[t][i].second = _mm256_setzero_ps();
    for (int64_t j = 0; j < pages; j++) {
        int64_t at = v_offset + j * page_size, column = c;
        for (int32_t r = 0; r < ranks[j]; r++, at++, column += n) {
            pair w[4];
#pragma GCC unroll 4
            for (int i = 0; i < blocks; i++) w[i] = load16(b[j], column + 16 * i, bf16);
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) {
                __m256 factor = _mm256_broadcast_ss(v[t] + at);
#pragma GCC unroll 4
                for (int i = 0; i < blocks; i++) {
                    sum[t][i].first = _mm256_fmadd_ps(factor, w[i].first, sum[t][i].first);
                    sum[t][i].second = _mm256_fmadd_ps(factor, w[i].second, sum[t][i].second);
                }
            }
        }
    }
    /* A copy that may be indexed at run time: the accumulators themselves must stay in registers. */
    pair done[6][4];
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++) done[t][i] = sum[t][i];
    add_sums(rows, blocks, done, bf16, y, y_dtype, y_offset + c, columns);
}

INLINE void expand_typed(const int bf16, const void *const *b, int64_t n, const int32_t *ranks, int64_t pages,
                         int64_t page_size, const float *const *v, int64_t v_offset, char *const *y, int64_t y_dtype,
                         int64_t y_offset, int rows, int64_t width) {
#define TILE(rows_, blocks_)                                                                                    \
    expand_tile(rows_, blocks_, bf16, b, n, c, ranks, pages, page_size, v + t, v_offset, y + t, y_dtype,        \
                y_offset, width - c)
    int64_t c = 0;
    if (rows == 1)
        for (int t = 0; c + 64 <= width; c += 64) TILE(1, 4);
    for (; c < width; c += 16) {
        int t = 0;
        for (; t + 6 <= rows; t += 6) TILE(6, 1);
        switch (rows - t) {
        case 1: TILE(1, 1); break;
        case 2: TILE(2, 1); break;
        case 3: TILE(3, 1); break;
        case 4: TILE(4, 1); break;
        case 5: TILE(5, 1); break;
        }
    }
#undef TILE
}

AVX2 static void expand(const void *const *b, int64_t dtype, int64_t n, const int32_t *ranks, int64_t pages,
                        int64_t page_size, const float *const *v, int64_t v_offset, char *const *y, int64_t y_dtype,
                        int64_t y_offset, int rows, int64_t width) {
    if (dtype == LK_BF16)
        expand_typed(1, b, n, ranks, pages, page_size, v, v_offset, y, y_dtype, y_offset, rows, width);
    else
        expand_typed(0, b, n, ranks, pages, page_size, v, v_offset, y, y_dtype, y_offset, rows, width);
}

const lk_kernels lk_avx2 = {"avx2", {LK_F32, -1}, pack_row, shrink, expand};
#endif
