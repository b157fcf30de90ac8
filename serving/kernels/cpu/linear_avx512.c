/* AVX-512 kernels: AVX512-BF16 and AVX512-VNNI.
 *
 * 12 rows x 2 panels of 16 columns: 24 of the 32 registers are sums. A panel's pair of k is one register, 16 columns
 * with two values each: what vdpbf16ps multiplies and adds in one instruction. x is rounded to bfloat16 once a row and its
 * pairs are broadcast. Of 8-bit weights it is the quad of k and vpdpbusd, a block of k in integers and then in floats.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stddef.h>
#include <string.h>

#include "linear_kernels.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni")))
#define INLINE \
    static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni")))

/* Pairs of k in a turn. */
enum { TURN = 4 };

/* A pair of x from row r: a base for each three rows, and 0, 1 or 2 strides from it, one addressing mode each. */
INLINE const char *row_of(const char *const *bases, int64_t stride, int r) { return bases[r / 3] + r % 3 * stride; }

INLINE void move_bases(const char **bases, int64_t bytes) {
#pragma GCC unroll 4
    for (int base = 0; base < 4; base++) bases[base] += bytes;
}

INLINE int32_t load_int(const char *at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE void fetch(const char *at, const int panels, int64_t panel_step, const int lines) {
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        _mm_prefetch(at + p * panel_step, _MM_HINT_T0);
        if (lines == 2) _mm_prefetch(at + p * panel_step + 64, _MM_HINT_T0);
    }
}

/* One pair of k, float32 or bfloat16. */
INLINE void multiply_pair(const int dtype, const int rows, const int panels, const char *w, int64_t panel_bytes,
                          const char *const *bases, int64_t stride, __m512 sum[4][SK_TILE_ROWS]) {
    const int halves = dtype == SK_F32 ? 2 : 1;
#pragma GCC unroll 2
    for (int odd = 0; odd < halves; odd++) {
        __m512 weights[4];
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) weights[p] = _mm512_loadu_ps(w + p * panel_bytes + odd * 64);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const char *x = row_of(bases, stride, r);
            __m512 value = dtype == SK_F32 ? _mm512_set1_ps(((const float *)x)[odd])
                                           : _mm512_castsi512_ps(_mm512_set1_epi32(load_int(x)));
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                sum[p][r] = dtype == SK_F32 ? _mm512_fmadd_ps(value, weights[p], sum[p][r])
                                            : _mm512_dpbf16_ps(sum[p][r], (__m512bh)value, (__m512bh)weights[p]);
        }
    }
}

INLINE void tile_float(const int dtype, const int rows, const int panels, const sk_tile *t) {
    const int64_t pair_bytes = dtype == SK_F32 ? 128 : 64, x_bytes = dtype == SK_F32 ? 8 : 4, stride = t->x_stride;
    const char *bases[4] = {t->x, t->x + 3 * stride, t->x + 6 * stride, t->x + 9 * stride};
    const char *w = t->w;
    __m512 sum[4][SK_TILE_ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
            sum[p][r] = t->from_y ? _mm512_loadu_ps(t->y + r * t->ldy + p * SK_PANEL) : _mm512_setzero_ps();
    const int64_t whole = t->k / (2 * TURN) * 2 * TURN;
    int64_t k = 0;
    for (const sk_ahead *next = t->ahead; k < whole; next++) {
        const char *ahead = next->at;
        const int64_t end = k + next->turns * 2 * TURN;
        for (; k < end; ahead += next->step)
            for (int i = 0; i < TURN; i++, k += 2, w += pair_bytes) {
                fetch(ahead + i * pair_bytes, panels, next->panel_step, dtype == SK_F32 ? 2 : 1);
                multiply_pair(dtype, rows, panels, w, t->panel_bytes, bases, stride, sum);
                move_bases(bases, x_bytes);
            }
    }
    for (; k < t->k; k += 2, w += pair_bytes) {
        multiply_pair(dtype, rows, panels, w, t->panel_bytes, bases, stride, sum);
        move_bases(bases, x_bytes);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) _mm512_storeu_ps(t->y + r * t->ldy + p * SK_PANEL, sum[p][r]);
}

/* The type that vpdpbusd's builtin has: with sums of __m512i, gcc 12 copies two registers for every one. */
typedef int32_t sums_of_int __attribute__((vector_size(64)));

/* One block of k, for one panel: sum[rows] += x W^T. */
INLINE void multiply_block(const int rows, const char *w, const char *const *bases, int64_t stride, __m512 *sum) {
    enum { QUADS = SK_BLOCK / 4 };
    __m512i weights[QUADS];
#pragma GCC unroll 4
    for (int quad = 0; quad < QUADS; quad++) weights[quad] = _mm512_loadu_si512(w + quad * 64);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        const sk_block *x = (const sk_block *)row_of(bases, stride, r);
        sums_of_int dot = (sums_of_int)_mm512_setzero_si512();
#pragma GCC unroll 4
        for (int quad = 0; quad < QUADS; quad++) {
            __m512i value = _mm512_set1_epi32(load_int((const char *)x->values + 4 * quad));
            dot = (sums_of_int)_mm512_dpbusd_epi32((__m512i)dot, weights[quad], value);
        }
        sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)dot), _mm512_set1_ps(x->scale), sum[r]);
    }
}

INLINE void tile_integer(const int rows, const int panels, const sk_tile *t) {
    const int64_t stride = t->x_stride, block_bytes = SK_BLOCK * SK_PANEL;
    const char *w = t->w, *bases[4];
    __m512 sum[4][SK_TILE_ROWS];
#pragma GCC unroll 4
    for (int base = 0; base < 4; base++) bases[base] = t->x + 3 * base * stride + offsetof(sk_row, blocks);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sum[p][r] = _mm512_set1_ps(((const sk_row *)(t->x + r * stride))->offset);
    int64_t k = 0;
    for (const sk_ahead *next = t->ahead; k < t->k; next++) {
        const char *ahead = next->at;
        int64_t end = k + next->turns * SK_BLOCK;
        for (; k < end; k += SK_BLOCK, w += block_bytes, ahead += next->step) {
#pragma GCC unroll 2
            for (int line = 0; line < block_bytes; line += 128) fetch(ahead + line, panels, next->panel_step, 2);
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) multiply_block(rows, w + p * t->panel_bytes, bases, stride, sum[p]);
            move_bases(bases, sizeof(sk_block));
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            float *y = t->y + r * t->ldy + p * SK_PANEL;
            __m512 start = t->from_y ? _mm512_loadu_ps(y) : _mm512_setzero_ps();
            _mm512_storeu_ps(y, _mm512_fmadd_ps(sum[p][r], _mm512_loadu_ps(t->scales + p * SK_PANEL), start));
        }
}

AVX512 static void round_row(const float *x, int64_t k, void *out) {
    uint16_t *rounded = out;
    for (int64_t i = 0; i < k; i += 16) {
        __mmask16 mask = k - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (k - i)) - 1);
        __m256bh values = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + i));
        _mm256_mask_storeu_epi16(rounded + i, mask, (__m256i)values);
    }
}

#define ROWS(rows)                           \
    case rows:                               \
        if (t->panels == 2)                  \
            TILE(rows, 2);                   \
        else                                 \
            TILE(rows, 1);                   \
        break;

#define TILES                                                                                         \
    if (t->rows == 1 && t->panels == 4) {                                                             \
        TILE(1, 4);                                                                                   \
        return;                                                                                       \
    }                                                                                                 \
    switch (t->rows) {                                                                                \
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) \
    }

#define TILE(rows, panels) tile_float(SK_F32, rows, panels, t)
AVX512 static void tile_f32(const sk_tile *t) { TILES }
#undef TILE

#define TILE(rows, panels) tile_float(SK_BF16, rows, panels, t)
AVX512 static void tile_bf16(const sk_tile *t) { TILES }
#undef TILE

#define TILE(rows, panels) tile_integer(rows, panels, t)
AVX512 static void tile_int8(const sk_tile *t) { TILES }
#undef TILE

const sk_kernels sk_avx512[SK_DTYPES] = {
    {"avx512", 12, {4, 2, 2, 2}, 64, 0, tile_f32},
    {"avx512", 12, {4, 2, 2, 2}, 32, round_row, tile_bf16},
    {"avx512", 12, {4, 2, 2, 1}, sizeof(sk_block), sk_avx2_quantise_row, tile_int8},
};
#endif
