/* AVX512-BF16: expand, 12 rows x 32 columns, 24 of the 32 registers. Two ranks of a line of b make two operands with one
 * shift and one blend each, and v is packed as pairs of ranks. Few rows take two lines at once. 8-bit columns lie in their
 * order: the floats they are widened to have nothing in their lower halves, where the other rank goes. */
#if defined(__x86_64__)
#include "avx512bf16.h"

INLINE __m512 widen(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
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

typedef struct {
    __m512bh low, high;
} columns32;

/* Two ranks of one line, 32 columns. Of each 16 bfloat16 columns the first half is in `low`, the second in `high`; of
 * 8-bit ones the first 16 are in `low`. */
INLINE columns32 pair_ranks(const int dtype, const char *b, const char *next) {
    columns32 c;
    if (dtype == LK_I8) {
        __m512i left = _mm512_castps_si512(widen_i8(b)), right = _mm512_castps_si512(widen_i8(b + 16));
        c.low = (__m512bh)_mm512_or_si512(_mm512_srli_epi32(left, 16), _mm512_castps_si512(widen_i8(next)));
        c.high = (__m512bh)_mm512_or_si512(_mm512_srli_epi32(right, 16), _mm512_castps_si512(widen_i8(next + 16)));
    } else {
        const __mmask32 upper = 0xaaaaaaaau;
        __m512i one = _mm512_loadu_si512(b), other = _mm512_loadu_si512(next);
        c.low = (__m512bh)_mm512_mask_blend_epi16(upper, one, _mm512_slli_epi32(other, 16));
        c.high = (__m512bh)_mm512_mask_blend_epi16(upper, _mm512_srli_epi32(one, 16), other);
    }
    return c;
}

/* sum += v B for two ranks of one line. */
INLINE void multiply_pair(const int rows, const int line, const int dtype, const char *b, const char *const *bases,
                          int64_t stride, sums sum) {
    const int64_t size = lk_element_size(dtype);
    columns32 c = pair_ranks(dtype, b + 32 * line * size, b + (LK_B_BLOCK + 32 * line) * size);
#pragma GCC unroll 12
    for (int t = 0; t < rows; t++) {
        int32_t pair;
        memcpy(&pair, bases[t / 3] + t % 3 * stride, sizeof pair);
        __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
        sum[line][t][0] = _mm512_dpbf16_ps(sum[line][t][0], factor, c.low);
        sum[line][t][1] = _mm512_dpbf16_ps(sum[line][t][1], factor, c.high);
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
INLINE void add_line(const int rows, const int dtype, const lk_columns *from, sums sum, const int line, char *const *y,
                     int64_t y_dtype, int64_t c) {
    const int64_t size = lk_element_size(y_dtype);
    const __mmask16 first = first_of_16(from->end - c) & (__mmask16)~first_of_16(from->begin - c);
    const __mmask16 second = first_of_16(from->end - c - 16) & (__mmask16)~first_of_16(from->begin - c - 16);
#pragma GCC unroll 12
    for (int t = 0; t < rows; t++) {
        __m512 left = sum[line][t][0], right = sum[line][t][1];
        if (dtype == LK_BF16) {
            __m512d low = _mm512_castps_pd(left), high = _mm512_castps_pd(right);
            left = _mm512_castpd_ps(_mm512_shuffle_f64x2(low, high, 0x44));
            right = _mm512_castpd_ps(_mm512_shuffle_f64x2(low, high, 0xee));
        }
        char *out = y[t] + c * size;
        add16(out, y_dtype, left, first);
        add16(out + 16 * size, y_dtype, right, second);
    }
}

/* y[t][c..) += v[t] B for so many rows and lines of 32 columns; rows of v lie `stride` bytes apart. */
INLINE void expand_tile(const int rows, const int lines, const int dtype, const lk_columns *from, const char *v,
                        int64_t stride, char *const *y, int64_t y_dtype, int64_t c) {
    const int64_t size = lk_element_size(dtype), rank_bytes = LK_B_BLOCK * size;
    const int64_t page_bytes = from->page_size * (int64_t)sizeof(uint16_t);
    sums sum;
#pragma GCC unroll 2
    for (int i = 0; i < lines; i++)
#pragma GCC unroll 12
        for (int t = 0; t < rows; t++) sum[i][t][0] = sum[i][t][1] = _mm512_setzero_ps();
    for (int64_t j = 0; j < from->pages; j++, v += page_bytes) {
        const char *unit = (const char *)from->b[j] + lk_b_place(c) * size;
        const char *bases[4] = {v, v + 3 * stride, v + 6 * stride, v + 9 * stride};
        for (int32_t left = from->ranks[j]; left > 0; left -= LK_UNIT, unit += from->unit * size) {
            const char *b = unit;
            for (int32_t pair = 0; pair < LK_UNIT && pair < left; pair += 2, b += 2 * rank_bytes) {
                /* One row is computed faster than its weights come. */
                if (rows == 1)
#pragma GCC unroll 4
                    for (int64_t line = 0; line < 2 * rank_bytes; line += 64)
                        _mm_prefetch(b + AHEAD_BYTES + line, _MM_HINT_T1);
#pragma GCC unroll 2
                for (int i = 0; i < lines; i++) multiply_pair(rows, i, dtype, b, bases, stride, sum);
#pragma GCC unroll 4
                for (int base = 0; base < 4; base++) bases[base] += 2 * sizeof(uint16_t);
            }
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < lines; i++) add_line(rows, dtype, from, sum, i, y, y_dtype, c + 32 * i);
}

/* A function each: in one of many loops gcc allocates registers without regard to them. */
#define EXPAND_TILE_OF(name, rows, lines, dtype)                                                                       \
    AVX512 static __attribute__((noinline)) void name(const lk_columns *from, const char *v, int64_t stride,          \
                                                      char *const *y, int64_t y_dtype, int64_t c) {                   \
        expand_tile(rows, lines, dtype, from, v, stride, y, y_dtype, c);                                               \
    }
#define EXPAND_TILE(rows, lines)                                     \
    EXPAND_TILE_OF(bf16_##rows##_##lines, rows, lines, LK_BF16)      \
    EXPAND_TILE_OF(i8_##rows##_##lines, rows, lines, LK_I8)
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

AVX512 void lk_expand_avx512bf16(const lk_columns *from, int64_t dtype, const float *const *v, char *const *y,
                                 int64_t y_dtype, int rows, float *panel) {
#define ONE_LINE(type)                                                                                            \
    {type##_1_1, type##_2_1, type##_3_1, type##_4_1, type##_5_1, type##_6_1, type##_7_1, type##_8_1, type##_9_1, \
     type##_10_1, type##_11_1, type##_12_1}
#define TWO_LINES(type) {type##_1_2, type##_2_2, type##_3_2, type##_4_2, type##_5_2, type##_6_2}
    static tile_function *const one_line[2][TILE_ROWS] = {ONE_LINE(bf16), ONE_LINE(i8)};
    static tile_function *const two_lines[2][TWO_LINES_ROWS] = {TWO_LINES(bf16), TWO_LINES(i8)};
#undef ONE_LINE
#undef TWO_LINES
    const int64_t stride = from->pages * from->page_size * (int64_t)sizeof(uint16_t);
    pack_v(from, v, rows, (char *)panel);
    for (int64_t c = from->begin / 32 * 32, next; c < from->end; c = next) {
        int wide = rows <= TWO_LINES_ROWS && c % LK_B_BLOCK == 0 && c + 32 < from->end;
        tile_function *const *tiles = wide ? two_lines[dtype == LK_I8] : one_line[dtype == LK_I8];
        next = c + (wide ? LK_B_BLOCK : 32);
        /* Groups of nearly equal size. */
        for (int t = 0, groups = (rows + TILE_ROWS - 1) / TILE_ROWS, count; groups; groups--, t += count) {
            count = (rows - t + groups - 1) / groups;
            tiles[count - 1](from, (const char *)panel + t * stride, stride, y + t, y_dtype, c);
        }
    }
}
#endif
