/* AVX2 + FMA: without an instruction that rounds to bfloat16, weights take about twice the time of AVX-512's. */
#if defined(__x86_64__)
#include "linear_avx2.h"
#include "unpack.h"

/* Scales or offsets of a group, each twice: four columns in each register. */
typedef struct {
    __m256 quarter[4];
} group_floats;

/* Not infinity and not NaN. */
INLINE __m256 widen_halves(__m256i halves) {
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(halves, _mm256_set1_epi32(0x8000)), 16);
    const __m256i rest = _mm256_slli_epi32(_mm256_and_si256(halves, _mm256_set1_epi32(0x7fff)), 13);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(sign, rest)), _mm256_set1_ps(0x1p112f));
}

INLINE group_floats read_floats(const char *at, const int64_t type) {
    group_floats out;
    for (int h = 0; h < 2; h++) {
        __m256 all;
        if (type == SK_F32) {
            all = _mm256_loadu_ps((const float *)at + 8 * h);
        } else {
            const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at + h));
            all = type == SK_F16 ? widen_halves(wide) : _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
        }
        const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
        out.quarter[2 * h] = _mm256_permutevar8x32_ps(all, twice);
        out.quarter[2 * h + 1] = _mm256_permutevar8x32_ps(all, _mm256_add_epi32(twice, _mm256_set1_epi32(4)));
    }
    return out;
}

/* Quarter q of pair p of a unit, 4 columns; `words`: the unit in 4 bits. */
INLINE __m256 read_codes(const char *unit, const __m256i words[2], const int codes, const int offset, const int p,
                         const int q) {
    if (codes == SK_U4) {
        const __m256i moved = _mm256_srli_epi32(words[q % 2], 4 * (2 * p + q / 2));
        const __m256i value = _mm256_and_si256(moved, _mm256_set1_epi32(15));
        return _mm256_cvtepi32_ps(offset == SK_SCALE_ALONE ? _mm256_sub_epi32(value, _mm256_set1_epi32(8)) : value);
    }
    const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(unit + (4 * p + q) * 8)));
    if (codes == SK_S8) return _mm256_cvtepi32_ps(wide);
    const __m256i sign = _mm256_and_si256(wide, _mm256_set1_epi32(INT32_MIN));
    const __m256i rest = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x7f)), 20);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(sign, rest)), _mm256_set1_ps(0x1p120f));
}

INLINE __m256 make_weights(__m256 codes, const int offset, __m256 scale, __m256 beside) {
    if (offset == SK_SCALE_ALONE) return _mm256_mul_ps(codes, scale);
    if (offset == SK_MINIMUM) return _mm256_fmadd_ps(codes, scale, beside);
    return _mm256_mul_ps(_mm256_sub_ps(codes, beside), scale);
}

/* Nearest, ties to even: bfloat16 in the low half of each lane. */
INLINE __m256i round_weights(__m256 weights) {
    const __m256i bits = _mm256_castps_si256(weights);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}

INLINE void unpack_units(const char *from, int64_t units, const int codes, const int offset,
                         const group_floats *scales, const group_floats *offsets, uint16_t *out, const char *ahead) {
    const int64_t bytes = codes == SK_U4 ? SK_UNIT_VALUES / 2 : SK_UNIT_VALUES;
    for (; units; units--, from += bytes, ahead += bytes, out += SK_UNIT_VALUES) {
        const __m256i words[2] = {_mm256_loadu_si256((const __m256i *)from),
                                  _mm256_loadu_si256((const __m256i *)from + 1)};
        for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int i = 0; i < 2 * SK_UNIT_PAIRS; i++) {
            __m256i rounded[2];
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                const int q = i % 2 * 2 + j;
                rounded[j] = round_weights(make_weights(read_codes(from, words, codes, offset, i / 2, q), offset,
                                                        scales->quarter[q], offsets->quarter[q]));
            }
            const __m256i packed = _mm256_packus_epi32(rounded[0], rounded[1]);
            _mm256_storeu_si256((__m256i *)out + i, _mm256_permute4x64_epi64(packed, 0xd8));
        }
    }
}

#define UNPACK_ATTRIBUTE AVX2
#define UNPACK sk_avx2_unpack
#include "unpack_groups.h"
#endif
