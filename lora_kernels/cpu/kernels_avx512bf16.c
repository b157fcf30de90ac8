/* AVX512-BF16 kernels, for bfloat16 weights. float32 activations are rounded to bfloat16 once, on their way in.
 *
 * Shrink: 8 ranks x 3 rows of vdpbf16ps, 24 of the 32 registers; x is packed in the order of the weights.
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

/* 16 columns of weights, see lk_site: those of the low halves before those of the high ones. */
INLINE __m512 widen_woven(__m256i values) {
    const __m512i shifts = _mm512_setr_epi32(16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512i shifted = _mm512_sllv_epi32(_mm512_broadcast_i64x4(values), shifts);
    return _mm512_castsi512_ps(_mm512_and_si512(shifted, _mm512_set1_epi32((int)0xffff0000u)));
}

/* 16 values as weights lie. */
INLINE __m256i weave(__m256i values) {
    __m128i low = _mm256_castsi256_si128(values), high = _mm256_extracti128_si256(values, 1);
    return _mm256_set_m128i(_mm_unpackhi_epi16(low, high), _mm_unpacklo_epi16(low, high));
}

AVX512 static void pack_row(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out) {
    (void)dtype;
    uint16_t *row = out;
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        __m256i rounded = x_dtype == LK_BF16 ? _mm256_loadu_si256((const __m256i *)((const uint16_t *)x + i))
                                             : (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps((const float *)x + i));
        _mm256_storeu_si256((__m256i *)(row + i), weave(rounded));
    }
    memset(row + i, 0, (size_t)(padded_k - i) * sizeof(uint16_t));
    for (; i < k; i++)
        row[lk_woven(i)] = x_dtype == LK_BF16 ? ((const uint16_t *)x)[i] : lk_f32_to_bf16(((const float *)x)[i]);
}

INLINE void dot_tile(const int rows, const lk_unit *unit, int64_t padded_k, const void *const *x, float *const *v) {
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
            __m512bh w = load32(unit->a, k * LK_UNIT + r * LK_A_BLOCK);
#pragma GCC unroll 3
            for (int t = 0; t < rows; t++) acc[r][t] = _mm512_dpbf16_ps(acc[r][t], row[t], w);
        }
    }
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) v[t][unit->v_offset + r] = unit->scale * _mm512_reduce_add_ps(acc[r][t]);
}

AVX512 static void shrink(const lk_unit *unit, int64_t dtype, int64_t padded_k, const void *const *x, int rows,
                          float *const *v) {
    (void)dtype;
    int t = 0;
    for (; t + 3 <= rows; t += 3) dot_tile(3, unit, padded_k, x + t, v + t);
    if (rows - t == 2)
        dot_tile(2, unit, padded_k, x + t, v + t);
    else if (rows - t == 1)
        dot_tile(1, unit, padded_k, x + t, v + t);
}

/* The first so many of 16 columns. */
INLINE __mmask16 first_of_16(int64_t columns) {
    return columns >= 16 ? (__mmask16)0xffff : columns > 0 ? (__mmask16)((1u << columns) - 1) : 0;
}

/* y[first..end) += those of the 16 sums. */
INLINE void add16(char *y, int64_t y_dtype, __m512 sum, int64_t first, int64_t end) {
    __mmask16 mask = first_of_16(end) & (__mmask16)~first_of_16(first);
    if (y_dtype == LK_BF16) {
        __m512 total = _mm512_add_ps(widen(_mm256_maskz_loadu_epi16(mask, y)), sum);
        _mm256_mask_storeu_epi16(y, mask, (__m256i)_mm512_cvtneps_pbh(total));
    } else {
        _mm512_mask_storeu_ps(y, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), sum));
    }
}

INLINE void expand_tile(const int rows, const int blocks, const lk_columns *from, const float *const *v,
                        char *const *y, int64_t y_dtype, int64_t c) {
    __m512 sum[6][4];
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++) sum[t][i] = _mm512_setzero_ps();
    for (int64_t j = 0; j < from->pages; j++) {
        int64_t at = j * from->page_size;
        const uint16_t *block = (const uint16_t *)from->b[j] + lk_b_place(c);
        for (int32_t r = 0; r < from->ranks[j]; r++, at++) {
            const uint16_t *weights = block + r / LK_UNIT * from->unit + r % LK_UNIT * LK_B_BLOCK;
            __m512 w[4];
#pragma GCC unroll 4
            for (int i = 0; i < blocks; i++) w[i] = widen_woven(_mm256_loadu_si256((const __m256i *)(weights + 16 * i)));
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
            add16(y[t] + (c + 16 * i) * lk_element_size(y_dtype), y_dtype, sum[t][i], from->begin - c - 16 * i,
                  from->end - c - 16 * i);
}

AVX512 static void expand(const lk_columns *from, int64_t dtype, const float *const *v, char *const *y, int64_t y_dtype,
                          int rows, float *panel) {
    (void)dtype;
    (void)panel;
#define TILE(rows_, blocks_) expand_tile(rows_, blocks_, from, v + t, y + t, y_dtype, c)
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
    int64_t c = from->begin / 16 * 16;
    while (c < from->end)
        if (c % LK_B_BLOCK == 0 && c + LK_B_BLOCK <= from->end) {
            ROWS(4);
            c += LK_B_BLOCK;
        } else {
            ROWS(1);
            c += 16;
        }
#undef ROWS
#undef TILE
}

const lk_kernels lk_avx512bf16 = {"avx512bf16", 1, -1, pack_row, shrink, expand};
#endif
