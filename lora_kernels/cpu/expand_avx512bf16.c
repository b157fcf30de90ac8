/* AVX512-BF16: expand, 12 rows x 32 columns or 6 x 64, 24 of the 32 registers. A pair of ranks of 16 columns is what
 * one instruction multiplies and adds: bfloat16 as it lies, with v rounded to bfloat16; 8-bit weights widened to 16
 * bits, with v in 16-bit integers and a factor on each row. Their sums are exact, so v loses a hundredth of what
 * bfloat16 costs it. / */
#if defined(__x86_64__)
#include <math.h>

#include "avx512bf16.h"

INLINE __m512 widen(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

/* One row of v, of a page: two ranks in 32 bits; past the page's ranks zero. */
INLINE __m512 ranks16(const lk_columns *from, const float *v, int64_t page, int64_t rank) {
    return _mm512_maskz_loadu_ps(first_of_16(from->ranks[page] - rank), v + page * from->page_size + rank);
}

INLINE void store_ranks16(const lk_columns *from, char *out, int64_t page, int64_t rank, __m256i values) {
    uint16_t *to = (uint16_t *)out + page * from->page_size + rank;
    _mm256_mask_storeu_epi16(to, first_of_16(from->page_size - rank), values);
}

INLINE void round_row(const lk_columns *from, const float *v, char *out) {
    for (int64_t j = 0; j < from->pages; j++)
        for (int64_t r = 0; r < from->page_size; r += 16)
            store_ranks16(from, out, j, r, (__m256i)_mm512_cvtneps_pbh(ranks16(from, v, j, r)));
}

/* Integers as large as their sums allow; returns what they are to be multiplied with. */
INLINE float quantize_row(const lk_columns *from, const float *v, char *out) {
    __m512 largest = _mm512_setzero_ps(), invalid = _mm512_setzero_ps();
    int64_t ranks = 0;
    for (int64_t j = 0; j < from->pages; j++) {
        ranks += from->ranks[j];
        for (int64_t r = 0; r < from->ranks[j]; r += 16) {
            __m512 values = ranks16(from, v, j, r);
            largest = _mm512_max_ps(largest, _mm512_abs_ps(values));
            invalid = _mm512_add_ps(invalid, _mm512_sub_ps(values, values));
        }
    }
    const int32_t limit = ranks > INT32_MAX / (INT16_MAX * 127) ? (int32_t)(INT32_MAX / (127 * ranks)) : INT16_MAX;
    /* NaN inputs stay NaN. */
    float most = _mm512_reduce_max_ps(largest) + _mm512_reduce_add_ps(invalid);
    const __m512 factor = _mm512_set1_ps(most > 1e-30f ? (float)limit / most : 0);
    for (int64_t j = 0; j < from->pages; j++)
        for (int64_t r = 0; r < from->page_size; r += 16) {
            __m512i values = _mm512_cvtps_epi32(_mm512_mul_ps(ranks16(from, v, j, r), factor));
            store_ranks16(from, out, j, r, _mm512_cvtsepi32_epi16(values));
        }
    return most / (float)limit;
}

/* v as the tiles take it. */
typedef struct {
    const char *rows;      /* pages one after another */
    const float *factors;  /* of 8-bit weights: one for each row */
    int64_t stride;        /* bytes */
} packed_v;

/* The sums of a row and 16 columns: float32, of 8-bit weights integers. */
typedef __m512i sums[12][4];

/* Written out because gcc 12, given the intrinsics, lets sums wander between registers and to memory. */
INLINE void multiply_add(const int dtype, __m512i *sum, __m512i a, __m512i b) {
    if (dtype == LK_I8)
        __asm__("vpdpwssd %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
    else
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

/* sum += v B for two ranks of 16 columns each. */
INLINE void multiply_pair(const int rows, const int groups, const int dtype, const char *b, const char *const *bases,
                          int64_t stride, sums sum) {
    __m512i weights[4];
#pragma GCC unroll 4
    for (int i = 0; i < groups; i++)
        weights[i] = dtype == LK_I8 ? _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)b + i))
                                    : _mm512_loadu_si512((const __m512i *)b + i);
#pragma GCC unroll 12
    for (int t = 0; t < rows; t++) {
        int32_t pair;
        memcpy(&pair, bases[t / 3] + t % 3 * stride, sizeof pair);
        __m512i factor = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
        for (int i = 0; i < groups; i++)
            multiply_add(dtype, &sum[t][i], factor, weights[i]);
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

INLINE void add_sums(const int rows, const int groups, sums sum, char *const *y, int64_t y_dtype, int64_t c) {
#pragma GCC unroll 12
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < groups; i++)
            add16(y[t] + (c + 16 * i) * lk_element_size(y_dtype), y_dtype, (__m512)sum[t][i], 0xffff);
}

/* y[t][c..) += v[t] B for so many rows and groups of 16 columns. */
INLINE void expand_tile(const int rows, const int groups, const int dtype, const lk_columns *from, const packed_v *v,
                        char *const *y, int64_t y_dtype, int64_t c) {
    const int64_t size = lk_element_size(dtype), pair_bytes = 2 * LK_B_BLOCK * size;
    const int64_t page_bytes = from->page_size * (int64_t)sizeof(uint16_t), stride = v->stride;
    const char *page = v->rows;
    sums sum;
#pragma GCC unroll 12
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
        for (int i = 0; i < groups; i++) sum[t][i] = _mm512_setzero_si512();
    for (int64_t j = 0; j < from->pages; j++, page += page_bytes) {
        const char *unit = (const char *)from->b[j] + lk_b_place(c, dtype) * size;
        const char *bases[4] = {page, page + 3 * stride, page + 6 * stride, page + 9 * stride};
        for (int32_t left = from->ranks[j]; left > 0; left -= LK_UNIT, unit += from->unit * size) {
            const char *b = unit;
            for (int32_t pair = 0; pair < LK_UNIT && pair < left; pair += 2, b += pair_bytes) {
                /* One row is computed faster than its weights come. */
                if (rows == 1)
#pragma GCC unroll 4
                    for (int64_t line = 0; line < pair_bytes; line += 64)
                        _mm_prefetch(b + AHEAD_BYTES + line, _MM_HINT_T1);
                multiply_pair(rows, groups, dtype, b, bases, stride, sum);
#pragma GCC unroll 4
                for (int base = 0; base < 4; base++) bases[base] += 2 * sizeof(uint16_t);
            }
        }
    }
    if (dtype == LK_I8) {
#pragma GCC unroll 12
        for (int t = 0; t < rows; t++)
#pragma GCC unroll 4
            for (int i = 0; i < groups; i++)
                sum[t][i] = (__m512i)_mm512_mul_ps(_mm512_set1_ps(v->factors[t]), _mm512_cvtepi32_ps(sum[t][i]));
    }
    if (y_dtype == LK_F32) {
        add_sums(rows, groups, sum, y, LK_F32, c);
    } else {
        add_sums(rows, groups, sum, y, LK_BF16, c);
    }
}

/* A function each: in one of many loops gcc allocates registers without regard to them. */
#define EXPAND_TILE_OF(name, rows, groups, dtype)                                                                \
    AVX512 static __attribute__((noinline)) void name(const lk_columns *from, const packed_v *v, char *const *y, \
                                                      int64_t y_dtype, int64_t c) {                              \
        expand_tile(rows, groups, dtype, from, v, y, y_dtype, c);                                                \
    }
#define EXPAND_TILE(rows, groups)                                  \
    EXPAND_TILE_OF(bf16_##rows##_##groups, rows, groups, LK_BF16)  \
    EXPAND_TILE_OF(i8_##rows##_##groups, rows, groups, LK_I8)
EXPAND_TILE(1, 4)
EXPAND_TILE(2, 4)
EXPAND_TILE(3, 4)
EXPAND_TILE(4, 4)
EXPAND_TILE(5, 4)
EXPAND_TILE(6, 4)
EXPAND_TILE(1, 2)
EXPAND_TILE(2, 2)
EXPAND_TILE(3, 2)
EXPAND_TILE(4, 2)
EXPAND_TILE(5, 2)
EXPAND_TILE(6, 2)
EXPAND_TILE(7, 2)
EXPAND_TILE(8, 2)
EXPAND_TILE(9, 2)
EXPAND_TILE(10, 2)
EXPAND_TILE(11, 2)
EXPAND_TILE(12, 2)

typedef void tile_function(const lk_columns *from, const packed_v *v, char *const *y, int64_t y_dtype, int64_t c);

enum { TILE_ROWS = 12, WIDE_ROWS = 6 };

/* A tile of which not all columns are asked for: by way of a whole one. */
AVX512 static void expand_edge(tile_function *tile, const lk_columns *from, const packed_v *v, char *const *y,
                               int64_t y_dtype, int64_t c, int rows) {
    float whole[TILE_ROWS][LK_B_BLOCK] = {0};
    char *to[TILE_ROWS];
    for (int t = 0; t < rows; t++) to[t] = (char *)((uintptr_t)whole[t] - (uintptr_t)c * sizeof(float));
    tile(from, v, to, LK_F32, c);
    for (int t = 0; t < rows; t++)
        for (int64_t i = 0; i < LK_B_BLOCK; i += 16) {
            __mmask16 mask = first_of_16(from->end - c - i) & (__mmask16)~first_of_16(from->begin - c - i);
            add16(y[t] + (c + i) * lk_element_size(y_dtype), y_dtype, _mm512_loadu_ps(&whole[t][i]), mask);
        }
}

INLINE int64_t expand_blocks(const int dtype, const lk_columns *from, const packed_v *v, char *const *y,
                             int64_t y_dtype, int64_t c) {
    for (; c + LK_B_BLOCK <= from->end; c += LK_B_BLOCK) expand_tile(1, 4, dtype, from, v, y, y_dtype, c);
    return c;
}

/* One row, all whole blocks of b from c on: without a call for each they take 5 % less. Returns where they end. */
AVX512 static int64_t expand_row(const lk_columns *from, int64_t dtype, const packed_v *v, char *const *y,
                                 int64_t y_dtype, int64_t c) {
    return dtype == LK_I8 ? expand_blocks(LK_I8, from, v, y, y_dtype, c) : expand_blocks(LK_BF16, from, v, y, y_dtype, c);
}

AVX512 void lk_expand_avx512bf16(const lk_columns *from, int64_t dtype, const float *const *v, char *const *y,
                                 int64_t y_dtype, int rows, float *panel) {
#define NARROW(type)                                                                                              \
    {type##_1_2, type##_2_2, type##_3_2, type##_4_2, type##_5_2, type##_6_2, type##_7_2, type##_8_2, type##_9_2, \
     type##_10_2, type##_11_2, type##_12_2}
#define WIDE(type) {type##_1_4, type##_2_4, type##_3_4, type##_4_4, type##_5_4, type##_6_4}
    static tile_function *const narrow[2][TILE_ROWS] = {NARROW(bf16), NARROW(i8)};
    static tile_function *const wide[2][WIDE_ROWS] = {WIDE(bf16), WIDE(i8)};
#undef NARROW
#undef WIDE
    const int64_t stride = from->pages * from->page_size * (int64_t)sizeof(uint16_t);
    float factors[LK_EXPAND_ROWS];
    for (int t = 0; t < rows; t++) {
        char *out = (char *)panel + t * stride;
        if (dtype == LK_I8)
            factors[t] = quantize_row(from, v[t], out);
        else
            round_row(from, v[t], out);
    }
    for (int64_t c = from->begin / 32 * 32, next; c < from->end; c = next) {
        int is_wide = rows <= WIDE_ROWS && c % LK_B_BLOCK == 0 && c + 32 < from->end;
        tile_function *const *tiles = is_wide ? wide[dtype == LK_I8] : narrow[dtype == LK_I8];
        next = c + (is_wide ? LK_B_BLOCK : 32);
        int is_whole = c >= from->begin && next <= from->end;
        if (rows == 1 && is_wide && is_whole) {
            next = expand_row(from, dtype, &(packed_v){(const char *)panel, factors, stride}, y, y_dtype, c);
            continue;
        }
        /* Groups of nearly equal size. */
        for (int t = 0, groups = (rows + TILE_ROWS - 1) / TILE_ROWS, count; groups; groups--, t += count) {
            count = (rows - t + groups - 1) / groups;
            packed_v some = {(const char *)panel + t * stride, factors + t, stride};
            if (is_whole)
                tiles[count - 1](from, &some, y + t, y_dtype, c);
            else
                expand_edge(tiles[count - 1], from, &some, y + t, y_dtype, c, count);
        }
    }
}
#endif
