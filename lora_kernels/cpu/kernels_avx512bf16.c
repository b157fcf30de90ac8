/* AVX512-BF16 kernels, for bfloat16 weights. Float32 activations are rounded to bfloat16 on their way in, and so is v on
 * its way to b, as tensor cores take them.
 *
 * Shrink: 8 ranks x 3 rows of vdpbf16ps, 24 of the 32 registers; x is packed in the order of the weights.
 * Expand: 12 rows x 32 columns, 24 registers again: two ranks of a line of b make two operands with one shift and one
 * blend each, and v is packed as pairs of ranks. Few rows take two lines at once.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "sgmv.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define INLINE static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* How far ahead of use one row's weights are fetched: whole blocks of a. */
enum { AHEAD_BYTES = 2048 };

INLINE __m512bh load32(const void *data, int64_t at) {
    return (__m512bh)_mm512_loadu_si512((const uint16_t *)data + at);
}

INLINE __m512 widen(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

/* The first so many of 16. */
INLINE __mmask16 first_of_16(int64_t count) {
    return count >= 16 ? (__mmask16)0xffff : count > 0 ? (__mmask16)((1u << count) - 1) : 0;
}

/* 32 activations as weights lie, see lk_site. */
INLINE __m512i pack32(const void *x, int64_t x_dtype, int64_t i) {
    static const uint16_t places[32] = {0,  8,  1,  9,  2,  10, 3,  11, 4,  12, 5,  13, 6,  14, 7,  15,
                                        16, 24, 17, 25, 18, 26, 19, 27, 20, 28, 21, 29, 22, 30, 23, 31};
    __m512i values;
    if (x_dtype == LK_BF16) {
        values = _mm512_loadu_si512((const uint16_t *)x + i);
    } else {
        const float *from = (const float *)x + i;
        values = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
    }
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(places), values);
}

AVX512 static void pack_row(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out) {
    (void)dtype;
    uint16_t *row = out;
    int64_t i = 0;
    for (; i + 32 <= k; i += 32) _mm512_storeu_si512(row + i, pack32(x, x_dtype, i));
    memset(row + i, 0, (size_t)(padded_k - i) * sizeof(uint16_t));
    for (; i < k; i++)
        row[lk_woven(i)] = x_dtype == LK_BF16 ? ((const uint16_t *)x)[i] : lk_f32_to_bf16(((const float *)x)[i]);
}

/* Sums of 8 registers: halves of two are added up side by side until one register holds two halves of each sum. */
INLINE __m256 sum8(const __m512 *a) {
    __m512 four[4], two[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x44), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xee));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        two[i] = _mm512_add_ps(_mm512_shuffle_f32x4(four[i], four[i + 2], 0x88),
                               _mm512_shuffle_f32x4(four[i], four[i + 2], 0xdd));
    /* Each quarter is one sum of two[0], one of two[1]: 0 and 1, 4 and 5, 2 and 3, 6 and 7. */
    __m512 pairs = _mm512_add_ps(_mm512_unpacklo_ps(two[0], two[1]), _mm512_unpackhi_ps(two[0], two[1]));
    __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4e));
    const __m512i order = _mm512_setr_epi32(0, 1, 8, 9, 4, 5, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums));
}

INLINE void dot_tile(const int rows, const lk_unit *unit, int64_t padded_k, const void *const *x, float *const *v) {
    enum { BLOCK_BYTES = LK_UNIT * LK_A_BLOCK * sizeof(uint16_t) };
    const char *a = unit->a, *ahead = a + AHEAD_BYTES, *end = a + padded_k * LK_UNIT * (int64_t)sizeof(uint16_t);
    __m512 acc[3][LK_UNIT];
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 8
        for (int r = 0; r < LK_UNIT; r++) acc[t][r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < padded_k; k += LK_A_BLOCK, a += BLOCK_BYTES) {
        /* One row is computed faster than its weights come. */
        if (rows == 1) {
            if (ahead == end) ahead = unit->ahead;
#pragma GCC unroll 8
            for (int line = 0; line < BLOCK_BYTES; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
            ahead += BLOCK_BYTES;
        }
        __m512bh row[3];
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) row[t] = load32(x[t], k);
#pragma GCC unroll 8
        for (int r = 0; r < LK_UNIT; r++) {
            __m512bh w = load32(a, r * LK_A_BLOCK);
#pragma GCC unroll 3
            for (int t = 0; t < rows; t++) acc[t][r] = _mm512_dpbf16_ps(acc[t][r], row[t], w);
        }
    }
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++)
        _mm256_storeu_ps(v[t] + unit->v_offset, _mm256_mul_ps(_mm256_set1_ps(unit->scale), sum8(acc[t])));
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

/* Rows of v in bfloat16, two ranks in 32 bits, the pages one after another; past a page's ranks zero. */
INLINE void pack_v(const lk_columns *from, const float *const *v, int rows, char *out) {
    for (int t = 0; t < rows; t++)
        for (int64_t j = 0; j < from->pages; j++, out += from->page_size * (int64_t)sizeof(uint16_t)) {
            __m512 values = _mm512_maskz_loadu_ps(first_of_16(from->ranks[j]), v[t] + j * from->page_size);
            __m256i rounded = (__m256i)_mm512_cvtneps_pbh(values);
            _mm256_mask_storeu_epi16(out, first_of_16(from->page_size), rounded);
        }
}

typedef __m512 sums[2][12][2];  /* of line, row and half: those that a tile uses stay in registers */

/* sum += v B for two ranks of one line, 32 columns. Of each 16 columns the first half is in `low`, the second in `high`. */
INLINE void multiply_pair(const int rows, const int line, const uint16_t *b, const char *const *bases, int64_t stride,
                          sums sum) {
    const __mmask32 upper = 0xaaaaaaaau;
    __m512i one = _mm512_loadu_si512(b + 32 * line), other = _mm512_loadu_si512(b + LK_B_BLOCK + 32 * line);
    __m512bh low = (__m512bh)_mm512_mask_blend_epi16(upper, one, _mm512_slli_epi32(other, 16));
    __m512bh high = (__m512bh)_mm512_mask_blend_epi16(upper, _mm512_srli_epi32(one, 16), other);
#pragma GCC unroll 12
    for (int t = 0; t < rows; t++) {
        int32_t pair;
        memcpy(&pair, bases[t / 3] + t % 3 * stride, sizeof pair);
        __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
        sum[line][t][0] = _mm512_dpbf16_ps(sum[line][t][0], factor, low);
        sum[line][t][1] = _mm512_dpbf16_ps(sum[line][t][1], factor, high);
    }
}

/* y += the 16 sums, of the columns in the mask. */
INLINE void add16(char *y, int64_t y_dtype, __m512 sum, __mmask16 mask) {
    if (y_dtype == LK_BF16) {
        __m512 total = _mm512_add_ps(widen(_mm256_maskz_loadu_epi16(mask, y)), sum);
        _mm256_mask_storeu_epi16(y, mask, (__m256i)_mm512_cvtneps_pbh(total));
    } else {
        _mm512_mask_storeu_ps(y, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), sum));
    }
}

/* The 32 columns of a line, sums as multiply_pair leaves them: y[t][c..) += those that are asked for. */
INLINE void add_line(const int rows, const lk_columns *from, sums sum, const int line, char *const *y, int64_t y_dtype,
                     int64_t c) {
    const int64_t size = lk_element_size(y_dtype);
    const __mmask16 first = first_of_16(from->end - c) & (__mmask16)~first_of_16(from->begin - c);
    const __mmask16 second = first_of_16(from->end - c - 16) & (__mmask16)~first_of_16(from->begin - c - 16);
#pragma GCC unroll 12
    for (int t = 0; t < rows; t++) {
        __m512d low = _mm512_castps_pd(sum[line][t][0]), high = _mm512_castps_pd(sum[line][t][1]);
        __m512 left = _mm512_castpd_ps(_mm512_shuffle_f64x2(low, high, 0x44));
        __m512 right = _mm512_castpd_ps(_mm512_shuffle_f64x2(low, high, 0xee));
        char *out = y[t] + c * size;
        add16(out, y_dtype, left, first);
        add16(out + 16 * size, y_dtype, right, second);
    }
}

/* y[t][c..) += v[t] B for so many rows and lines of 32 columns; rows of v lie `stride` bytes apart. */
INLINE void expand_tile(const int rows, const int lines, const lk_columns *from, const char *v, int64_t stride,
                        char *const *y, int64_t y_dtype, int64_t c) {
    const int64_t page_bytes = from->page_size * (int64_t)sizeof(uint16_t);
    sums sum;
#pragma GCC unroll 2
    for (int i = 0; i < lines; i++)
#pragma GCC unroll 12
        for (int t = 0; t < rows; t++) sum[i][t][0] = sum[i][t][1] = _mm512_setzero_ps();
    for (int64_t j = 0; j < from->pages; j++, v += page_bytes) {
        const uint16_t *unit = (const uint16_t *)from->b[j] + lk_b_place(c);
        const char *bases[4] = {v, v + 3 * stride, v + 6 * stride, v + 9 * stride};
        for (int32_t left = from->ranks[j]; left > 0; left -= LK_UNIT, unit += from->unit) {
            const uint16_t *b = unit;
            for (int32_t pair = 0; pair < LK_UNIT && pair < left; pair += 2, b += 2 * LK_B_BLOCK) {
                /* One row is computed faster than its weights come. */
                if (rows == 1)
#pragma GCC unroll 4
                    for (int line = 0; line < 4; line++)
                        _mm_prefetch((const char *)b + AHEAD_BYTES + 64 * line, _MM_HINT_T0);
#pragma GCC unroll 2
                for (int i = 0; i < lines; i++) multiply_pair(rows, i, b, bases, stride, sum);
#pragma GCC unroll 4
                for (int base = 0; base < 4; base++) bases[base] += 2 * sizeof(uint16_t);
            }
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < lines; i++) add_line(rows, from, sum, i, y, y_dtype, c + 32 * i);
}

/* A function each: in one of many loops gcc allocates registers without regard to them. */
#define EXPAND_TILE(rows, lines)                                                                                     \
    AVX512 static __attribute__((noinline)) void expand_##rows##_##lines(                                            \
        const lk_columns *from, const char *v, int64_t stride, char *const *y, int64_t y_dtype, int64_t c) {         \
        expand_tile(rows, lines, from, v, stride, y, y_dtype, c);                                                    \
    }
EXPAND_TILE(1, 2)
EXPAND_TILE(2, 2)
EXPAND_TILE(3, 2)
EXPAND_TILE(4, 2)
EXPAND_TILE(5, 2)
EXPAND_TILE(6, 2)
EXPAND_TILE(1, 1)
EXPAND_TILE(2, 1)
EXPAND_TILE(3, 1)
EXPAND_TILE(4, 1)
EXPAND_TILE(5, 1)
EXPAND_TILE(6, 1)
EXPAND_TILE(7, 1)
EXPAND_TILE(8, 1)
EXPAND_TILE(9, 1)
EXPAND_TILE(10, 1)
EXPAND_TILE(11, 1)
EXPAND_TILE(12, 1)

typedef void tile_function(const lk_columns *from, const char *v, int64_t stride, char *const *y, int64_t y_dtype,
                           int64_t c);

enum { TILE_ROWS = 12, TWO_LINES_ROWS = 6 };

AVX512 static void expand(const lk_columns *from, int64_t dtype, const float *const *v, char *const *y, int64_t y_dtype,
                          int rows, float *panel) {
    static tile_function *const one_line[] = {expand_1_1, expand_2_1, expand_3_1, expand_4_1,  expand_5_1,  expand_6_1,
                                              expand_7_1, expand_8_1, expand_9_1, expand_10_1, expand_11_1, expand_12_1};
    static tile_function *const two_lines[] = {expand_1_2, expand_2_2, expand_3_2, expand_4_2, expand_5_2, expand_6_2};
    (void)dtype;
    const int64_t stride = from->pages * from->page_size * (int64_t)sizeof(uint16_t);
    pack_v(from, v, rows, (char *)panel);
    for (int64_t c = from->begin / 32 * 32, next; c < from->end; c = next) {
        int wide = rows <= TWO_LINES_ROWS && c % LK_B_BLOCK == 0 && c + 32 < from->end;
        tile_function *const *tiles = wide ? two_lines : one_line;
        next = c + (wide ? LK_B_BLOCK : 32);
        /* Groups of nearly equal size. */
        for (int t = 0, groups = (rows + TILE_ROWS - 1) / TILE_ROWS, count; groups; groups--, t += count) {
            count = (rows - t + groups - 1) / groups;
            tiles[count - 1](from, (const char *)panel + t * stride, stride, y + t, y_dtype, c);
        }
    }
}

const lk_kernels lk_avx512bf16 = {"avx512bf16", 1, -1, pack_row, shrink, expand};
#endif
