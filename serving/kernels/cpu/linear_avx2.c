/* AVX2 + FMA kernels.
 *
 * 6 rows x 16 columns: 12 accumulators, 2 registers of weights, 1 of x. Fewer rows take 2 or 4 panels at once, so that
 * the latency of an FMA (4 cycles, 2 a cycle) stays covered and several streams of memory are open.
 * bfloat16 weights are widened in registers, one shift or mask for 8 of them: it hides behind the FMAs.
 * 8-bit weights are widened to 16 bits and multiplied with 16-bit x by vpmaddwd, 16 products an instruction: twice the
 * rate of an FMA, exact, and with none of vpmaddubsw's saturation.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "linear_kernels.h"

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))

static const uint32_t odd_mask[8] __attribute__((aligned(32))) = {
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};

/* The second of each pair of bfloat16. The mask comes from memory: a register for it would be the 17th. */
INLINE __m256 odd_floats(__m256i pairs) {
    __m256 floats;
    __asm__("vandps %2, %1, %0" : "=x"(floats) : "x"(pairs), "m"(*(const __m256i *)odd_mask));
    return floats;
}

/* 8 of the 16 columns: half 0 or 1 of a panel, for the even or the odd k of a pair. */
INLINE __m256 weights(const int dtype, const char *pair, int odd, int half) {
    if (dtype == SK_F32) return _mm256_load_ps((const float *)pair + (odd * 2 + half) * 8);
    __m256i both = _mm256_load_si256((const __m256i *)pair + half);
    return odd ? odd_floats(both) : _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
}

/* sum += value * w. Written out because gcc 12, given the intrinsic, lets sums wander between registers and spills half of
 * the 12: 60 % of this loop's speed. */
INLINE void multiply_add(__m256 *sum, __m256 value, __m256 w) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(value), "x"(w));
}

INLINE void tile_float(const int dtype, const int rows, const int panels, const sk_tile *t) {
    const int64_t pair_bytes = dtype == SK_F32 ? 128 : 64;
    __m256 sum[4][6][2];
    /* Two bases, and 0, 1 or 2 strides from them: one addressing mode each, and few registers. */
    const char *x0 = t->x, *x3 = t->x + 3 * t->x_stride;
    const int64_t stride = t->x_stride;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                sum[p][r][h] = t->from_y ? _mm256_loadu_ps(t->y + r * t->ldy + p * SK_PANEL + h * 8)
                                         : _mm256_setzero_ps();
    }
    const char *w = t->w, *ahead = t->ahead;
    int64_t panel_bytes = t->panel_bytes, k = 0, end = t->turn;
    for (int part = 0; part < 2; part++) {
        for (; k < end; k += 2, x0 += 8, x3 += 8, w += pair_bytes, ahead += t->ahead_step) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                for (int line = 0; line < pair_bytes; line += 64)
                    _mm_prefetch(ahead + p * panel_bytes + line, _MM_HINT_T0);
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 4
                for (int p = 0; p < panels; p++) {
                    __m256 w0 = weights(dtype, w + p * panel_bytes, odd, 0);
                    __m256 w1 = weights(dtype, w + p * panel_bytes, odd, 1);
#pragma GCC unroll 6
                    for (int r = 0; r < rows; r++) {
                        __m256 value = _mm256_broadcast_ss((const float *)((r < 3 ? x0 : x3) + r % 3 * stride) + odd);
                        multiply_add(&sum[p][r][0], value, w0);
                        multiply_add(&sum[p][r][1], value, w1);
                    }
                }
        }
        ahead = t->ahead_then;
        end = t->k;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) _mm256_storeu_ps(t->y + r * t->ldy + p * SK_PANEL + h * 8, sum[p][r][h]);
}

INLINE void tile_integer(const int rows, const int panels, const sk_tile *t) {
    __m256i sum[4][6][2];
    const int16_t *x[6];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        x[r] = (const int16_t *)(t->x + r * t->x_stride);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sum[p][r][0] = sum[p][r][1] = _mm256_setzero_si256();
    }
    const char *w = t->w, *ahead = t->ahead;
    int64_t panel_bytes = t->panel_bytes, k = 0, end = t->turn;
    for (int part = 0; part < 2; part++) {
        for (; k < end; k += 2, w += 32, ahead += t->ahead_step) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) _mm_prefetch(ahead + p * panel_bytes, _MM_HINT_T0);
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                const __m128i *pair = (const __m128i *)(w + p * panel_bytes);
                __m256i w0 = _mm256_cvtepi8_epi16(_mm_load_si128(pair));
                __m256i w1 = _mm256_cvtepi8_epi16(_mm_load_si128(pair + 1));
#pragma GCC unroll 6
                for (int r = 0; r < rows; r++) {
                    __m256i value = _mm256_castps_si256(_mm256_broadcast_ss((const float *)(x[r] + k)));
                    sum[p][r][0] = _mm256_add_epi32(sum[p][r][0], _mm256_madd_epi16(value, w0));
                    sum[p][r][1] = _mm256_add_epi32(sum[p][r][1], _mm256_madd_epi16(value, w1));
                }
            }
        }
        ahead = t->ahead_then;
        end = t->k;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        __m256 x_scale = _mm256_set1_ps(t->x_scales[r]);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                float *y = t->y + r * t->ldy + p * SK_PANEL + h * 8;
                __m256 scale = _mm256_mul_ps(x_scale, _mm256_loadu_ps(t->scales + p * SK_PANEL + h * 8));
                __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[p][r][h]), scale);
                _mm256_storeu_ps(y, t->from_y ? _mm256_add_ps(_mm256_loadu_ps(y), value) : value);
            }
    }
}

AVX2 void sk_avx2_quantise_row(const float *x, int64_t k, void *out, float *scale) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 most = _mm256_setzero_ps(), finite = _mm256_setzero_ps();
    int64_t whole = k / 8 * 8;
    for (int64_t i = 0; i < whole; i += 8) {
        __m256 value = _mm256_loadu_ps(x + i);
        most = _mm256_max_ps(most, _mm256_andnot_ps(sign, value));
        finite = _mm256_add_ps(finite, _mm256_mul_ps(value, _mm256_setzero_ps()));
    }
    float highest = 0, ok = 0, lanes[8], zeros[8];
    _mm256_storeu_ps(lanes, most);
    _mm256_storeu_ps(zeros, finite);
    for (int i = 0; i < 8; i++) {
        highest = lanes[i] > highest ? lanes[i] : highest;
        ok += zeros[i];
    }
    for (int64_t i = whole; i < k; i++) {
        highest = fabsf(x[i]) > highest ? fabsf(x[i]) : highest;
        ok += x[i] * 0;
    }
    int32_t limit = sk_integer_limit(k);
    float factor = ok == 0 && highest > 0 ? (float)limit / highest : 0;
    *scale = ok == 0 ? highest / (float)limit : NAN;
    int16_t *integers = out;
    __m256 factors = _mm256_set1_ps(factor);
    for (int64_t i = 0; i < whole; i += 8) {
        __m256i rounded = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), factors));
        __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
        _mm_storeu_si128((__m128i *)(integers + i), _mm_packs_epi32(low, high));
    }
    for (int64_t i = whole; i < k; i++)
        integers[i] = (int16_t)_mm_cvtss_si32(_mm_set_ss(x[i] * factor));
}

#define FLOAT_TILES(dtype)                                                                                      \
    switch (t->rows * 8 + t->panels) {                                                                          \
    case 12: tile_float(dtype, 1, 4, t); break;                                                                 \
    case 10: tile_float(dtype, 1, 2, t); break;                                                                 \
    case 9: tile_float(dtype, 1, 1, t); break;                                                                  \
    case 18: tile_float(dtype, 2, 2, t); break;                                                                 \
    case 17: tile_float(dtype, 2, 1, t); break;                                                                 \
    case 25: tile_float(dtype, 3, 1, t); break;                                                                 \
    case 33: tile_float(dtype, 4, 1, t); break;                                                                 \
    case 41: tile_float(dtype, 5, 1, t); break;                                                                 \
    case 49: tile_float(dtype, 6, 1, t); break;                                                                 \
    }

AVX2 static void tile_f32(const sk_tile *t) { FLOAT_TILES(SK_F32) }

AVX2 static void tile_bf16(const sk_tile *t) { FLOAT_TILES(SK_BF16) }

AVX2 static void tile_int8(const sk_tile *t) {
    switch (t->rows * 8 + t->panels) {
    case 12: tile_integer(1, 4, t); break;
    case 10: tile_integer(1, 2, t); break;
    case 9: tile_integer(1, 1, t); break;
    case 18: tile_integer(2, 2, t); break;
    case 17: tile_integer(2, 1, t); break;
    case 25: tile_integer(3, 1, t); break;
    case 33: tile_integer(4, 1, t); break;
    case 41: tile_integer(5, 1, t); break;
    case 49: tile_integer(6, 1, t); break;
    }
}

const sk_kernels sk_avx2[SK_DTYPES] = {
    {"avx2", 6, {4, 2, 1, 1}, 0, 0, tile_f32},
    {"avx2", 6, {4, 2, 1, 1}, 0, 0, tile_bf16},
    {"avx2", 6, {4, 2, 1, 1}, 2, sk_avx2_quantise_row, tile_int8},
};
#endif
