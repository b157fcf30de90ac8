/* AVX2 + FMA: expand.
 *
 * 6 rows x 16 columns, 12 accumulators: 8 loads for 12 FMAs; one row takes 64 columns, so that the FMA latency stays
 * covered. Many rows read B from a panel: widened once, and its ranks side by side.
 *
 * bfloat16 weights read in place are widened with one shift (odd lanes: one mask) per 8 values by taking the even and
 * the odd columns of 16 apart; the order is restored once, before y is written.
 */
#if defined(__x86_64__)
#include <string.h>

#include "avx2.h"

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

/* The pair in column order. */
INLINE pair in_order(pair sum, int bf16) {
    if (!bf16) return sum;
    __m256 a = _mm256_unpacklo_ps(sum.first, sum.second), b = _mm256_unpackhi_ps(sum.first, sum.second);
    return (pair){_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)};
}

/* y[0..columns) += the 16 sums, of which only so many count. */
static __attribute__((noinline)) void add_few(char *y, int64_t y_dtype, const float *sums, int64_t columns) {
    for (int64_t c = 0; c < columns; c++)
        if (y_dtype == LK_BF16)
            ((uint16_t *)y)[c] = lk_f32_to_bf16(lk_bf16_to_f32(((uint16_t *)y)[c]) + sums[c]);
        else
            ((float *)y)[c] += sums[c];
}

/* y[t][c..) += v[t] B for 16 * blocks columns, B from the panel unless that is NULL. */
INLINE void expand_tile(const int rows, const int blocks, const int bf16, const lk_columns *from, const float *panel,
                        int64_t panel_c, const float *const *v, char *const *y, int64_t y_dtype, int64_t c) {
    const int64_t stride = panel ? 16 : from->stride, first = panel ? (c - panel_c) * from->pages * from->page_size : c;
    pair sum[6][4];
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++) sum[t][i].first = sum[t][i].second = _mm256_setzero_ps();
    for (int64_t j = 0; j < from->pages; j++) {
        const void *b = panel ? panel : from->b[j];
        int64_t at = j * from->page_size, column = first + (panel ? at * 16 : 0), end = at + from->ranks[j];
        /* Full pages are one run of ranks, in v as in the panel. */
        while (panel && end == (j + 1) * from->page_size && j + 1 < from->pages) end += from->ranks[++j];
#pragma GCC unroll 4
        for (; at < end; at++, column += stride) {
            if (blocks == 4 && j == 0) {
                /* One row: as in shrink. */
                const char *ahead = (const char *)from->ahead + column * (bf16 ? 2 : 4);
#pragma GCC unroll 4
                for (int line = 0; line < (bf16 ? 128 : 256); line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
            }
#pragma GCC unroll 4
            for (int i = 0; i < blocks; i++) {
                pair w = load16(b, column + 16 * i, bf16);
#pragma GCC unroll 6
                for (int t = 0; t < rows; t++) {
                    __m256 factor = _mm256_broadcast_ss(v[t] + at);
                    multiply_add(&sum[t][i].first, factor, w.first);
                    multiply_add(&sum[t][i].second, factor, w.second);
                }
            }
        }
    }
    int64_t columns = from->width - c;
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++) {
            char *out = y[t] + (c + 16 * i) * lk_element_size(y_dtype);
            pair s = in_order(sum[t][i], bf16);
            if (columns >= 16 * (i + 1)) {
                add16(out, y_dtype == LK_BF16, s.first, s.second);
            } else {
                float few[16];
                _mm256_storeu_ps(few, s.first);
                _mm256_storeu_ps(few + 8, s.second);
                add_few(out, y_dtype, few, columns - 16 * i);
            }
        }
}

/* At least this many rows pay for copying B into a panel: at 16 and 32 rows it cost 5 to 15 % of 576 -> 1536, from 48 on
 * it gained as much. */
enum { PANEL_ROWS = 48 };
/* Half a first-level cache. */
enum { PANEL_FLOATS = 4096 };

/* Columns [begin, end) in blocks of 16 columns by ranks, the pages one after another. */
INLINE void fill_panel(const int bf16, const lk_columns *from, int64_t begin, int64_t end, float *panel) {
    int64_t ranks = from->pages * from->page_size;
    for (int64_t j = 0; j < from->pages; j++)
        for (int64_t r = 0; r < from->ranks[j]; r++) {
            float *out = panel + (j * from->page_size + r) * 16;
            for (int64_t c = begin; c < end; c += 16, out += ranks * 16) {
                pair w = in_order(load16(from->b[j], r * from->stride + c, bf16), bf16);
                _mm256_storeu_ps(out, w.first);
                _mm256_storeu_ps(out + 8, w.second);
            }
        }
}

INLINE void expand_panel(const int bf16, const lk_columns *from, const float *const *v, char *const *y, int64_t y_dtype,
                         int rows, float *panel) {
    int64_t most = PANEL_FLOATS / (from->pages * from->page_size) / 16 * 16, step = most > 16 ? most : 16;
#define TILE(rows_) expand_tile(rows_, 1, 0, from, panel, begin, v + t, y + t, y_dtype, c)
    for (int64_t begin = 0; begin < from->width; begin += step) {
        int64_t end = begin + step < from->width ? begin + step : from->width;
        fill_panel(bf16, from, begin, end, panel);
        for (int t = 0; t < rows; t += 6)
            for (int64_t c = begin; c < end; c += 16) {
                switch (rows - t) {
                case 1: TILE(1); break;
                case 2: TILE(2); break;
                case 3: TILE(3); break;
                case 4: TILE(4); break;
                case 5: TILE(5); break;
                default: TILE(6);
                }
            }
    }
#undef TILE
}

INLINE void expand_typed(const int bf16, const lk_columns *from, const float *const *v, char *const *y, int64_t y_dtype,
                         int rows, float *panel) {
    if (rows >= PANEL_ROWS) {
        expand_panel(bf16, from, v, y, y_dtype, rows, panel);
        return;
    }
#define TILE(rows_, blocks_) expand_tile(rows_, blocks_, bf16, from, NULL, 0, v + t, y + t, y_dtype, c)
    int64_t c = 0;
    if (rows == 1)
        for (int t = 0; c + 64 <= from->width; c += 64) TILE(1, 4);
    for (; c < from->width; c += 16) {
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

AVX2 void lk_expand_avx2(const lk_columns *columns, int64_t dtype, const float *const *v, char *const *y,
                         int64_t y_dtype, int rows, float *panel) {
    if (dtype == LK_BF16)
        expand_typed(1, columns, v, y, y_dtype, rows, panel);
    else
        expand_typed(0, columns, v, y, y_dtype, rows, panel);
}
#endif
