/* AVX512-BF16 kernels, for bfloat16 weights and activations.
 *
 * Shrink: 8 ranks x 3 rows of vdpbf16ps, 24 of the 32 registers; x is read where it lies.
 * Expand: 6 rows x 64 columns in float32; v is never rounded.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "sgmv.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define INLINE static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512bf16")))

INLINE __m512bh load32(const void *data, int64_t at) {
    return (__m512bh)_mm512_loadu_si512((const uint16_t *)data + at);
}

INLINE __m512 widen(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

AVX512 static void pack_row(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out) {
    (void)dtype;
    (void)x_dtype;
    memcpy(out, x, (size_t)k * sizeof(uint16_t));
    memset((uint16_t *)out + k, 0, (size_t)(padded_k - k) * sizeof(uint16_t));
}

INLINE void dot_tile(const int rows, const void *a, int64_t padded_k, const void *const *x, float scale,
                     float *const *v, int64_t v_offset) {
    __m512 acc[8][3];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++)
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) acc[r][t] = _mm512_setzero_ps();
    for (int64_t k = 0; k < padded_k; k += 32) {
        __m512bh row[3];
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) row[t] = load32(x[t], k);
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) {
            __m512bh w = load32(a, r * padded_k + k);
#pragma GCC unroll 3
            for (int t = 0; t < rows; t++) acc[r][t] = _mm512_dpbf16_ps(acc[r][t], row[t], w);
        }
    }
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) v[t][v_offset + r] = scale * _mm512_reduce_add_ps(acc[r][t]);
}

AVX512 static void shrink(const void *a, int64_t dtype, int64_t padded_k, int64_t ranks, const void *const *x, int rows,
                          float scale, float *const *v, int64_t v_offset) {
    (void)dtype;
    for (int64_t r = 0; r < ranks; r += 8) {
        const uint16_t *weights = (const uint16_t *)a + r * padded_k;
        int t = 0;
        for (; t + 3 <= rows; t += 3) dot_tile(3, weights, padded_k, x + t, scale, v + t, v_offset + r);
        if (rows - t == 2)
            dot_tile(2, weights, padded_k, x + t, scale, v + t, v_offset + r);
        else if (rows - t == 1)
            dot_tile(1, weights, padded_k, x + t, scale, v + t, v_offset + r);
    }
}

INLINE void add16(char *y, int64_t y_dtype, __m512 sum, int64_t columns) {
    __mmask16 mask = columns >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << columns) - 1);
    if (y_dtype == LK_BF16) {
        __m512 total = _mm512_add_ps(widen(_mm256_maskz_loadu_epi16(mask, y)), sum);
        _mm256_mask_storeu_epi16(y, mask, (__m256i)_mm512_cvtneps_pbh(total));
    } else {
        _mm512_mask_storeu_ps(y, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), sum));
    }
}

INLINE void expand_tile(const int rows, const int blocks, const void *const *b, int64_t n, int64_t c,
                        const int32_t *ranks, int64_t pages, int64_t page_size, const float *const *v,
                        int64_t v_offset, char *const *y, int64_t y_dtype, int64_t y_offset, int64_t columns) {
    __m512 sum[6][4];
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++) sum[t][i] = _mm512_setzero_ps();
    for (int64_t j = 0; j < pages; j++) {
        int64_t at = v_offset + j * page_size;
        const uint16_t *weights = (const uint16_t *)b[j] + c;
        for (int32_t r = 0; r < ranks[j]; r++, at++, weights += n) {
            __m512 w[4];
#pragma GCC unroll 4
            for (int i = 0; i < blocks; i++) w[i] = widen(_mm256_loadu_si256((const __m256i *)(weights + 16 * i)));
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) {
                __m512 factor = _mm512_set1_ps(v[t][at]);
#pragma GCC unroll 4
                for (int i = 0; i < blocks; i++) sum[t][i] = _mm512_fmadd_ps(factor, w[i], sum[t][i]);
            }
        }
    }
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++)
            add16(y[t] + (y_offset + c + 16 * i) * lk_element_size(y_dtype), y_dtype, sum[t][i], columns - 16 * i);
}

AVX512 static void expand(const void *const *b, int64_t dtype, int64_t n, const int32_t *ranks, int64_t pages,
                          int64_t page_size, const float *const *v, int64_t v_offset, char *const *y, int64_t y_dtype,
                          int64_t y_offset, int rows, int64_t width) {
    (void)dtype;
#define TILE(rows_, blocks_)                                                                                    \
    expand_tile(rows_, blocks_, b, n, c, ranks, pages, page_size, v + t, v_offset, y + t, y_dtype, y_offset, width - c)
#define ROWS(blocks_)                                                                                           \
    do {                                                                                                        \
        int t = 0;                                                                                              \
        for (; t + 6 <= rows; t += 6) TILE(6, blocks_);                                                         \
        switch (rows - t) {                                                                                     \
        case 1: TILE(1, blocks_); break;                                                                        \
        case 2: TILE(2, blocks_); break;                                                                        \
        case 3: TILE(3, blocks_); break;                                                                        \
        case 4: TILE(4, blocks_); break;                                                                        \
        case 5: TILE(5, blocks_); break;                                                                        \
        }                                                                                                       \
    } while (0)
    int64_t c = 0;
    for (; c + 64 <= width; c += 64) ROWS(4);
    for (; c < width; c += 16) ROWS(1);
#undef ROWS
#undef TILE
}

const lk_kernels lk_avx512bf16 = {"avx512bf16", {-1, LK_BF16}, pack_row, shrink, expand};
#endif
