/* AVX2 + FMA: expand.
 *
 * 6 rows x 16 columns, 12 accumulators: 8 loads for 12 FMAs; one row takes 64 columns, so that the FMA latency stays
 * covered. bfloat16 weights are widened with one shift or one mask per 8 values, 8-bit ones with a widening, shifts and
 * a conversion.
 */
#if defined(__x86_64__)
#include "avx2.h"

/* How far ahead of use one row's weights are fetched, into the second-level cache: see avx512bf16.h. */
enum { AHEAD_BYTES = 2048 };

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

/* y[first..end) += those of the 16 sums. */
static __attribute__((noinline)) void add_few(char *y, int64_t y_dtype, const float *sums, int64_t first, int64_t end) {
    for (int64_t c = first; c < end; c++)
        if (y_dtype == LK_BF16)
            ((uint16_t *)y)[c] = lk_f32_to_bf16(lk_bf16_to_f32(((uint16_t *)y)[c]) + sums[c]);
        else
            ((float *)y)[c] += sums[c];
}

typedef pair sums[6][4];  /* of row and 16 columns; those that a tile uses stay in registers */

/* Both ranks of a pair, 8 columns of b from `at` on; not of float32. */
INLINE pair load_pair(const void *b, int64_t at, const int dtype) {
    if (dtype == LK_BF16) return load16(b, at, LK_BF16);
    __m256i both = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)((const int8_t *)b + at)));
    return (pair){_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(both, 16), 16)),
                  _mm256_cvtepi32_ps(_mm256_srai_epi32(both, 16))};
}

/* 16 columns of a rank of b; `at` is where those of the first of its pair begin. */
INLINE pair load_rank(const void *b, int64_t at, const int dtype, const int second) {
    if (dtype == LK_F32) return load16(b, at + second * LK_B_BLOCK, LK_F32);
    pair low = load_pair(b, at, dtype), high = load_pair(b, at + 16, dtype);
    return second ? (pair){low.second, high.second} : (pair){low.first, high.first};
}

/* sum += v * w for one rank. */
INLINE void multiply_rank(const int rows, sums sum, const int block, pair w, const float *const *v, int64_t at) {
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++) {
        __m256 factor = _mm256_broadcast_ss(v[t] + at);
        multiply_add(&sum[t][block].first, factor, w.first);
        multiply_add(&sum[t][block].second, factor, w.second);
    }
}

/* sum += v B for a pair of ranks of one row, which are loaded once. */
INLINE void multiply_pair(const int blocks, const int dtype, sums sum, const void *b, int64_t place, const float *v) {
    __m256 even = _mm256_broadcast_ss(v), odd = _mm256_broadcast_ss(v + 1);
#pragma GCC unroll 4
    for (int i = 0; i < blocks; i++) {
        pair low = load_pair(b, place + 32 * i, dtype), high = load_pair(b, place + 32 * i + 16, dtype);
        multiply_add(&sum[0][i].first, even, low.first);
        multiply_add(&sum[0][i].second, even, high.first);
        multiply_add(&sum[0][i].first, odd, low.second);
        multiply_add(&sum[0][i].second, odd, high.second);
    }
}

/* sum += v B for at most 8 ranks, B where it lies. */
INLINE void multiply_unit(const int rows, const int blocks, const int dtype, sums sum, const void *b, int64_t place,
                          const float *const *v, int64_t at, int64_t end) {
    const int64_t step = dtype == LK_F32 ? 16 : 32;
    for (; at < end; at += 2, place += 2 * LK_B_BLOCK) {
        if (blocks == 4) {
            /* One row is computed faster than its weights come. */
            const char *ahead = (const char *)b + place * lk_element_size(dtype) + AHEAD_BYTES;
#pragma GCC unroll 8
            for (int64_t line = 0; line < 2 * LK_B_BLOCK * lk_element_size(dtype); line += 64)
                _mm_prefetch(ahead + line, _MM_HINT_T1);
        }
        if (rows == 1 && dtype != LK_F32 && at + 1 < end) {
            multiply_pair(blocks, dtype, sum, b, place, v[0] + at);
            continue;
        }
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++)
            multiply_rank(rows, sum, i, load_rank(b, place + step * i, dtype, 0), v, at);
        if (at + 1 == end) break;
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++)
            multiply_rank(rows, sum, i, load_rank(b, place + step * i, dtype, 1), v, at + 1);
    }
}

/* y[t][c..) += v[t] B for 16 * blocks columns. */
INLINE void expand_tile(const int rows, const int blocks, const int dtype, const lk_columns *from,
                        const float *const *v, char *const *y, int64_t y_dtype, int64_t c) {
    sums sum;
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++) sum[t][i].first = sum[t][i].second = _mm256_setzero_ps();
    for (int64_t j = 0; j < from->pages; j++) {
        int64_t at = j * from->page_size, end = at + from->ranks[j];
        for (int64_t place = lk_b_place(c, dtype); at < end; at += LK_UNIT, place += from->unit) {
            int64_t ranks = end - at < LK_UNIT ? end - at : LK_UNIT;
            multiply_unit(rows, blocks, dtype, sum, from->b[j], place, v, at, at + ranks);
        }
    }
    int whole = c >= from->begin && c + 16 * blocks <= from->end;
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < blocks; i++) {
            char *out = y[t] + (c + 16 * i) * lk_element_size(y_dtype);
            if (whole) {
                add16(out, y_dtype == LK_BF16, sum[t][i].first, sum[t][i].second);
            } else {
                float few[16];
                _mm256_storeu_ps(few, sum[t][i].first);
                _mm256_storeu_ps(few + 8, sum[t][i].second);
                int64_t first = from->begin - c - 16 * i, end = from->end - c - 16 * i;
                add_few(out, y_dtype, few, first > 0 ? first : 0, end < 16 ? end : 16);
            }
        }
}

static int64_t whole16(int64_t columns) { return columns / 16 * 16; }

INLINE void expand_typed(const int dtype, const lk_columns *from, const float *const *v, char *const *y, int64_t y_dtype,
                         int rows) {
#define TILE(rows_, blocks_) expand_tile(rows_, blocks_, dtype, from, v + t, y + t, y_dtype, c)
    for (int64_t c = whole16(from->begin); c < from->end; c += 16) {
        int t = 0;
        if (rows == 1)
            for (; c % LK_B_BLOCK == 0 && c + LK_B_BLOCK <= from->end; c += LK_B_BLOCK) TILE(1, 4);
        if (c >= from->end) break;
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
    (void)panel;
    if (dtype == LK_I8)
        expand_typed(LK_I8, columns, v, y, y_dtype, rows);
    else if (dtype == LK_BF16)
        expand_typed(LK_BF16, columns, v, y, y_dtype, rows);
    else
        expand_typed(LK_F32, columns, v, y, y_dtype, rows);
}
#endif
