/* AVX-512: a unit of 4-bit weights is one register; a shift and a look-up make 16 of them floats. */
#if defined(__x86_64__)
#include "linear_avx512.h"
#include "unpack.h"

/* Scales or offsets of a group, each twice: of columns 0 to 7, and of 8 to 15. */
typedef struct {
    __m512 half[2];
} group_floats;

INLINE group_floats read_floats(const char *at, const int64_t type) {
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512 all;
    if (type == SK_F32)
        all = _mm512_loadu_ps(at);
    else if (type == SK_F16)
        all = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
    else
        all = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)), 16);
    return (group_floats){{_mm512_permutexvar_ps(low, all),
                           _mm512_permutexvar_ps(_mm512_add_epi32(low, _mm512_set1_epi32(SK_HALF)), all)}};
}

/* Half h of pair p of a unit; `word`: the unit in 4 bits. */
INLINE __m512 read_codes(const char *unit, __m512i word, const int codes, const int p, const int h, __m512 table) {
    if (codes == SK_U4) return _mm512_permutexvar_ps(_mm512_srli_epi32(word, 4 * (2 * p + h)), table);
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(unit + (2 * p + h) * SK_PANEL));
    if (codes == SK_S8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    const __m256i wide = _mm256_cvtepu8_epi16(bytes);
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(sign, rest)), _mm512_set1_ps(256));
}

INLINE __m512 make_weights(__m512 codes, const int offset, __m512 scale, __m512 beside) {
    if (offset == SK_SCALE_ALONE) return _mm512_mul_ps(codes, scale);
    if (offset == SK_MINIMUM) return _mm512_fmadd_ps(codes, scale, beside);
    return _mm512_mul_ps(_mm512_sub_ps(codes, beside), scale);
}

INLINE void unpack_units(const char *from, int64_t units, const int codes, const int offset,
                         const group_floats *scales, const group_floats *offsets, uint16_t *out, const char *ahead) {
    const int64_t bytes = codes == SK_U4 ? SK_UNIT_VALUES / 2 : SK_UNIT_VALUES;
    const float first = codes == SK_U4 && offset == SK_SCALE_ALONE ? -8 : 0;
    const __m512 table = _mm512_add_ps(
        _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(first));
    for (; units; units--, from += bytes, ahead += bytes, out += SK_UNIT_VALUES) {
        const __m512i word = codes == SK_U4 ? _mm512_loadu_si512(from) : _mm512_setzero_si512();
        for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int p = 0; p < SK_UNIT_PAIRS; p++) {
            __m512 weights[2];
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                weights[h] = make_weights(read_codes(from, word, codes, p, h, table), offset, scales->half[h],
                                          offsets->half[h]);
            _mm512_storeu_si512(out + p * 2 * SK_PANEL, (__m512i)_mm512_cvtne2ps_pbh(weights[1], weights[0]));
        }
    }
}

#define UNPACK_ATTRIBUTE AVX512
#define UNPACK sk_avx512_unpack
#include "unpack_groups.h"
#endif
