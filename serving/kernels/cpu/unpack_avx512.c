/* AVX-512: a unit of 4-bit weights is one register; a shift and a look-up make 16 of them floats. Up to SK_FUSED_ROWS rows
 * multiply them where they are: a lone row with weights in the caches takes 0.9 ns for 32 of 4 bits, through memory
 * 1.4. */
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

INLINE __m512 code_table(const int codes, const int offset) {
    const float first = codes == SK_U4 && offset == SK_SCALE_ALONE ? -8 : 0;
    return _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(first));
}

/* Pair p of a unit, as a register of bfloat16. */
INLINE __m512bh unpack_pair(const char *unit, __m512i word, const int codes, const int offset, const int p,
                            __m512 table, const group_floats *scales, const group_floats *offsets) {
    __m512 weights[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
        weights[h] = make_weights(read_codes(unit, word, codes, p, h, table), offset, scales->half[h], offsets->half[h]);
    return _mm512_cvtne2ps_pbh(weights[1], weights[0]);
}

INLINE void unpack_units(const char *from, int64_t units, const int codes, const int offset,
                         const group_floats *scales, const group_floats *offsets, uint16_t *out, const char *ahead) {
    const int64_t bytes = codes == SK_U4 ? SK_UNIT_VALUES / 2 : SK_UNIT_VALUES;
    const __m512 table = code_table(codes, offset);
    for (; units; units--, from += bytes, ahead += bytes, out += SK_UNIT_VALUES) {
        const __m512i word = codes == SK_U4 ? _mm512_loadu_si512(from) : _mm512_setzero_si512();
        for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int p = 0; p < SK_UNIT_PAIRS; p++)
            _mm512_storeu_si512(out + p * 2 * SK_PANEL,
                                (__m512i)unpack_pair(from, word, codes, offset, p, table, scales, offsets));
    }
}

/* k that are multiplied for a panel before the next one's: the sums of several panels are then under way at once. */
enum { RUN = 32 };

/* Some units of one panel: sums[rows] += x W^T, pair after pair as the tiles of bfloat16 do it. */
INLINE void multiply_units(const char *from, int64_t units, const int codes, const int offset, const int rows,
                           const group_floats *scales, const group_floats *offsets, const char *x, int64_t stride,
                           const char *ahead, __m512 *sums) {
    const int64_t bytes = codes == SK_U4 ? SK_UNIT_VALUES / 2 : SK_UNIT_VALUES;
    const __m512 table = code_table(codes, offset);
    __m512 sum[SK_FUSED_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sum[r] = sums[r];
    for (; units; units--, from += bytes, ahead += bytes, x += SK_UNIT * 2) {
        const __m512i word = codes == SK_U4 ? _mm512_loadu_si512(from) : _mm512_setzero_si512();
        for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int p = 0; p < SK_UNIT_PAIRS; p++) {
            const __m512bh weights = unpack_pair(from, word, codes, offset, p, table, scales, offsets);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r] = _mm512_dpbf16_ps(sum[r], (__m512bh)_mm512_set1_epi32(load_int(x + r * stride + 4 * p)), weights);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sums[r] = sum[r];
}

INLINE void multiply_run(const sk_groups *g, const int rows, const char *group, const char *from, int64_t units,
                         const char *x, int64_t stride, const char *ahead, __m512 *sums) {
    const group_floats scales = read_floats(group, g->type);
    const group_floats offsets = g->offset == SK_SCALE_ALONE ? scales : read_floats(group + sk_scale_bytes(g), g->type);
#define RUN_CASE(codes, offset)                                                                               \
    case codes * SK_OFFSETS + offset:                                                                         \
        multiply_units(from, units, codes, offset, rows, &scales, &offsets, x, stride, ahead, sums);          \
        break;
    switch (g->codes * SK_OFFSETS + g->offset) {
        RUN_CASE(SK_U4, SK_SCALE_ALONE)
        RUN_CASE(SK_U4, SK_MINIMUM)
        RUN_CASE(SK_U4, SK_ZERO)
        RUN_CASE(SK_S8, SK_SCALE_ALONE)
        RUN_CASE(SK_S8, SK_MINIMUM)
        RUN_CASE(SK_S8, SK_ZERO)
        RUN_CASE(SK_E4M3, SK_SCALE_ALONE)
    }
#undef RUN_CASE
}

INLINE void fused_tile(const sk_groups *g, const int rows, const sk_tile *t) {
    const int64_t unit = sk_unit_bytes(g);
    __m512 sums[4][SK_FUSED_ROWS];
    for (int64_t p = 0; p < t->panels; p++)
        for (int r = 0; r < rows; r++)
            sums[p][r] = t->from_y ? _mm512_loadu_ps(t->y + r * t->ldy + p * SK_PANEL) : _mm512_setzero_ps();
    const char *group = t->w;
    for (int64_t start = 0; start < t->k; start += g->size, group += sk_group_bytes(g)) {
        const int64_t end = start + g->size < t->k ? start + g->size : t->k;
        const char *from = group + sk_group_head(g);
        for (int64_t k = start, upto; k < end; from += (upto - k) / SK_UNIT * unit, k = upto) {
            upto = k + RUN < end ? k + RUN : end;
            const char *next = from + t->ahead->step;
            if (next >= t->w + t->panel_bytes) next = t->ahead->at + (next - t->w - t->panel_bytes);
            for (int64_t p = 0; p < t->panels; p++)
                multiply_run(g, rows, group + p * t->panel_bytes, from + p * t->panel_bytes, (upto - k) / SK_UNIT,
                             t->x + 2 * k, t->x_stride, next + p * t->panel_bytes, sums[p]);
        }
    }
    for (int64_t p = 0; p < t->panels; p++)
        for (int r = 0; r < rows; r++) _mm512_storeu_ps(t->y + r * t->ldy + p * SK_PANEL, sums[p][r]);
}

AVX512 void sk_avx512_fused(const sk_groups *g, const sk_tile *t) {
    switch (t->rows) {
    case 1: fused_tile(g, 1, t); break;
    case 2: fused_tile(g, 2, t); break;
    case 3: fused_tile(g, 3, t); break;
    case 4: fused_tile(g, 4, t); break;
    }
}

#define UNPACK_ATTRIBUTE AVX512
#define UNPACK sk_avx512_unpack
#include "unpack_groups.h"
#endif
