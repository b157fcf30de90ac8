/* AVX512-BF16: shrink, 8 ranks x 3 rows of vdpbf16ps, 24 of the 32 registers; x is packed in the order of the weights.
 * 8-bit weights are widened once for many rows. */
#if defined(__x86_64__)
#include "avx512bf16.h"

INLINE __m512bh load32(const void *data, int64_t at) {
    return (__m512bh)_mm512_loadu_si512((const uint16_t *)data + at);
}

/* 32 weights. */
INLINE __m512bh weights32(const int dtype, const void *data, int64_t at) {
    if (dtype == LK_BF16) return load32(data, at);
    const int8_t *from = (const int8_t *)data + at;
    return _mm512_cvtne2ps_pbh(widen_i8(from + 16), widen_i8(from));
}

/* 32 activations as weights lie, see lk_site. */
INLINE __m512i pack32(const void *x, int64_t x_dtype, int64_t i, int64_t dtype) {
    static const uint16_t places[32] = {0,  8,  1,  9,  2,  10, 3,  11, 4,  12, 5,  13, 6,  14, 7,  15,
                                        16, 24, 17, 25, 18, 26, 19, 27, 20, 28, 21, 29, 22, 30, 23, 31};
    __m512i values;
    if (x_dtype == LK_BF16) {
        values = _mm512_loadu_si512((const uint16_t *)x + i);
    } else {
        const float *from = (const float *)x + i;
        values = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
    }
    return dtype == LK_BF16 ? _mm512_permutexvar_epi16(_mm512_loadu_si512(places), values) : values;
}

AVX512 static void pack_row(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out) {
    uint16_t *row = out;
    int64_t i = 0;
    for (; i + 32 <= k; i += 32) _mm512_storeu_si512(row + i, pack32(x, x_dtype, i, dtype));
    memset(row + i, 0, (size_t)(padded_k - i) * sizeof(uint16_t));
    for (; i < k; i++)
        row[dtype == LK_BF16 ? lk_woven(i) : i] =
            x_dtype == LK_BF16 ? ((const uint16_t *)x)[i] : lk_f32_to_bf16(((const float *)x)[i]);
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

INLINE void dot_tile(const int rows, const int dtype, const lk_unit *unit, const char *a, int64_t padded_k,
                     const void *const *x, float *const *v) {
    const int64_t block = LK_UNIT * LK_A_BLOCK * lk_element_size(dtype);
    const char *ahead = a + AHEAD_BYTES, *end = a + padded_k / LK_A_BLOCK * block;
    __m512 acc[3][LK_UNIT];
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++)
#pragma GCC unroll 8
        for (int r = 0; r < LK_UNIT; r++) acc[t][r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < padded_k; k += LK_A_BLOCK, a += block) {
        /* One row is computed faster than its weights come. */
        if (rows == 1) {
            if (ahead == end) ahead = unit->ahead;
#pragma GCC unroll 8
            for (int64_t line = 0; line < block; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T1);
            ahead += block;
        }
        __m512bh row[3];
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) row[t] = load32(x[t], k);
#pragma GCC unroll 8
        for (int r = 0; r < LK_UNIT; r++) {
            __m512bh w = weights32(dtype, a, r * LK_A_BLOCK);
#pragma GCC unroll 3
            for (int t = 0; t < rows; t++) acc[t][r] = _mm512_dpbf16_ps(acc[t][r], row[t], w);
        }
    }
    __m256 factor = _mm256_mul_ps(_mm256_set1_ps(unit->scale), _mm256_loadu_ps(unit->rank_scales));
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++) _mm256_storeu_ps(v[t] + unit->v_offset, _mm256_mul_ps(factor, sum8(acc[t])));
}

INLINE void dot_tiles(const int dtype, const lk_unit *unit, const char *a, int64_t padded_k, const void *const *x,
                      int rows, float *const *v) {
    int t = 0;
    for (; t + 3 <= rows; t += 3) dot_tile(3, dtype, unit, a, padded_k, x + t, v + t);
    if (rows - t == 2)
        dot_tile(2, dtype, unit, a, padded_k, x + t, v + t);
    else if (rows - t == 1)
        dot_tile(1, dtype, unit, a, padded_k, x + t, v + t);
}

AVX512 static void shrink_i8(const lk_unit *unit, int64_t padded_k, const void *const *x, int rows, float *const *v) {
    dot_tiles(LK_I8, unit, unit->a, padded_k, x, rows, v);
}

/* More rows than one tile takes: 8-bit weights are widened once for all. */
enum { WIDE_ROWS = 4 };

AVX512 static void shrink(const lk_unit *unit, int64_t dtype, int64_t padded_k, const void *const *x, int rows,
                          float *const *v, void *wide) {
    const char *a = unit->a;
    if (dtype == LK_I8) {
        if (rows < WIDE_ROWS) {
            shrink_i8(unit, padded_k, x, rows, v);
            return;
        }
        for (int64_t i = 0; i < LK_UNIT * padded_k; i += 32)
            _mm512_storeu_si512((uint16_t *)wide + i, (__m512i)weights32(LK_I8, a, i));
        a = wide;
    }
    dot_tiles(LK_BF16, unit, a, padded_k, x, rows, v);
}

const lk_kernels lk_avx512bf16 = {"avx512", 1, -1, pack_row, shrink, lk_expand_avx512bf16};
#endif
