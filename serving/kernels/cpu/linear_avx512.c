/* AVX-512 kernels: AVX512-BF16 and AVX512-VNNI.
 *
 * 12 rows x 2 panels of 16 columns: 24 of the 32 registers are sums. A panel's pair of k is one register, 16 columns
 * with two values each: what vdpbf16ps multiplies and adds in one instruction. x is rounded to bfloat16 once a row and
 * its pairs are broadcast. 8-bit weights: linear_int8_avx512.c. / */
#if defined(__x86_64__)
#include "linear_avx512.h"

/* Pairs of k in a turn. */
enum { TURN = 4 };

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

AVX512 static void round_row(const float *x, int64_t k, void *out) {
    uint16_t *rounded = out;
    for (int64_t i = 0; i < k; i += 16) {
        __mmask16 mask = k - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (k - i)) - 1);
        __m256bh values = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + i));
        _mm256_mask_storeu_epi16(rounded + i, mask, (__m256i)values);
    }
}

#define TILE(rows, panels) tile_float(SK_F32, rows, panels, t)
AVX512 static void tile_f32(const sk_tile *t) { TILES }
#undef TILE

#define TILE(rows, panels) tile_float(SK_BF16, rows, panels, t)
AVX512 static void tile_bf16(const sk_tile *t) { TILES }
#undef TILE

const sk_kernels sk_avx512[SK_DTYPES] = {
    {"avx512", 12, {4, 2, 2, 2}, 2, 64, SK_F32, 0, tile_f32, 0},
    {"avx512", 12, {4, 2, 2, 2}, 2, 32, SK_BF16, round_row, tile_bf16, 0},
    {"avx512", 12, {4, 2, 2, 1}, 2, sizeof(sk_shifted) + sizeof(float), SK_F32,
     sk_avx512_quantise_row, sk_avx512_tile_int8, &sk_portable_shifted},
};
#endif
