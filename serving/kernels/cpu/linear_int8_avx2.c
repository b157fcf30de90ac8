/* AVX2 + FMA: 8-bit weights.
 *
 * vpmaddubsw multiplies unsigned weights with signed x, 32 products an instruction, four times the rate of an FMA, and
 * adds neighbours in 16 bits. Two such sums may be added in 16 bits again, because rows are scaled for it (sk_row):
 * half as many go on to 32 bits. The sums of a row are in memory, for a block's integers hold none of them up; so the
 * weights of a block stay in registers whatever the number of rows, each row is 29 instructions a panel and block, and
 * a bfloat16 tile takes twice as many for the same work. / */
#if defined(__x86_64__)
#include <stddef.h>
#include <string.h>

#include "linear_avx2.h"

enum { QUADS = SK_BLOCK / 4, BLOCK_BYTES = SK_BLOCK * SK_PANEL };

/* Row r: a base for each three rows, and 0, 1 or 2 strides from it, one addressing mode each. */
INLINE const sk_block *block_of(const char *const *bases, int64_t stride, int r) {
    return (const sk_block *)(bases[r / 3] + r % 3 * stride);
}

INLINE __m256i broadcast_quad(const sk_block *x, int quad) {
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(x->values + 4 * quad)));
}

/* One block of k, for one panel: sums[rows][2] += x W^T. As many lines as its weights have are fetched from `ahead`, in
 * between the products, where gcc would not leave them: all at once they cost a lone row a tenth of its speed. */
INLINE void multiply_block(const int rows, const char *w, const char *const *bases, int64_t stride, __m256 *sums,
                           const char *ahead) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i weights[QUADS][2];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * QUADS; i++) weights[i / 2][i % 2] = _mm256_load_si256((const __m256i *)w + i);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        const sk_block *x = block_of(bases, stride, r);
        __m256i dot[2];
#pragma GCC unroll 2
        for (int quad = 0; quad < QUADS; quad += 2) {
            if (r == 0) {
                __asm__ volatile("prefetcht0 %0" : : "m"(ahead[quad * 64]));
                __asm__ volatile("prefetcht0 %0" : : "m"(ahead[quad * 64 + 64]));
            }
            __m256i first = broadcast_quad(x, quad), second = broadcast_quad(x, quad + 1);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(weights[quad][h], first),
                                                 _mm256_maddubs_epi16(weights[quad + 1][h], second));
                __m256i quads = _mm256_madd_epi16(pairs, ones);
                dot[h] = quad ? _mm256_add_epi32(dot[h], quads) : quads;
            }
        }
        __m256 scale = _mm256_broadcast_ss(&x->scale);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            sums[2 * r + h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[h]), scale, sums[2 * r + h]);
    }
}

INLINE void tile_int8(const int rows, const int panels, const sk_tile *t) {
    const int64_t stride = t->x_stride, panel_bytes = t->panel_bytes;
    const char *w = t->w, *bases[4];
    __m256 memory[4 * 2 * SK_TILE_ROWS], *sums = memory;
#pragma GCC unroll 4
    for (int base = 0; base < 4; base++) bases[base] = t->x + 3 * base * stride + offsetof(sk_row, blocks);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        __m256 offset = _mm256_broadcast_ss(&((const sk_row *)(t->x + r * stride))->offset);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            sums[(p * rows + r) * 2] = sums[(p * rows + r) * 2 + 1] = offset;
            /* The lines of y, often another core's: 4 % of a wide product of many rows. Any AVX2 processor lets it
             * pass. */
            __asm__ volatile("prefetchw %0" : : "m"(t->y[r * t->ldy + p * SK_PANEL]));
        }
    }
    int64_t k = 0;
    for (const sk_ahead *next = t->ahead; k < t->k; next++) {
        const char *ahead = next->at;
        int64_t end = k + next->turns * SK_BLOCK, step = next->step, panel_step = next->panel_step;
        for (; k < end; k += SK_BLOCK, w += BLOCK_BYTES, ahead += step) {
            /* Or gcc holds them in variables too, which have no registers: a third store of each block is theirs. */
            __asm__("" : "+r"(sums) : : "memory");
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                multiply_block(rows, w + p * panel_bytes, bases, stride, sums + p * rows * 2, ahead + p * panel_step);
#pragma GCC unroll 4
            for (int base = 0; base < 4; base++) bases[base] += sizeof(sk_block);
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const float *scales = t->scales + p * SK_PANEL;
        const __m256 low = _mm256_loadu_ps(scales), high = _mm256_loadu_ps(scales + 8), *sum = sums + p * rows * 2;
        float *y = t->y + p * SK_PANEL;
        /* Whole lines, one after another: those of twelve rows may share a set of the cache. */
        for (int r = 0; r < rows; r++, sum += 2, y += t->ldy) {
            __m256 start[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            if (t->from_y) start[0] = _mm256_loadu_ps(y), start[1] = _mm256_loadu_ps(y + 8);
            _mm256_storeu_ps(y, _mm256_fmadd_ps(sum[0], low, start[0]));
            _mm256_storeu_ps(y + 8, _mm256_fmadd_ps(sum[1], high, start[1]));
        }
    }
}

AVX2 void sk_avx2_tile_int8(const sk_tile *t) {
    switch (t->rows * 8 + t->panels) {
    case 12: tile_int8(1, 4, t); break;
    case 10: tile_int8(1, 2, t); break;
    case 9: tile_int8(1, 1, t); break;
    case 18: tile_int8(2, 2, t); break;
    case 17: tile_int8(2, 1, t); break;
#define ROWS(rows) case 8 * rows + 1: tile_int8(rows, 1, t); break;
    ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
    }
}

/* For one half of a block in each half of a register, its values 0 to 3 and 4 to 7: the largest group, see sk_row. */
INLINE float largest_group(__m256 early, __m256 late) {
    const __m256 zero = _mm256_setzero_ps();
    __m256 positive[2] = {_mm256_max_ps(early, zero), _mm256_max_ps(late, zero)};
    __m256 plus = _mm256_add_ps(positive[0], positive[1]);
    __m256 minus = _mm256_add_ps(_mm256_sub_ps(positive[0], early), _mm256_sub_ps(positive[1], late));
    __m256 groups = _mm256_add_ps(_mm256_shuffle_ps(plus, minus, 0x88), _mm256_shuffle_ps(plus, minus, 0xdd));
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(groups), _mm256_extractf128_ps(groups, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

INLINE __m256 load_halves(const float *x) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), _mm_loadu_ps(x + SK_BLOCK / 2), 1);
}

INLINE __m256i round_values(__m256 values, __m256 factor) { return _mm256_cvtps_epi32(_mm256_mul_ps(values, factor)); }

INLINE float sum_lanes(__m256 a) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    sum = _mm_hadd_ps(sum, sum);
    return _mm_cvtss_f32(_mm_hadd_ps(sum, sum));
}

AVX2 void sk_avx2_quantise_row(const float *x, int64_t k, void *out) {
    sk_row *row = out;
    __m256 total = _mm256_setzero_ps(), not_finite = _mm256_setzero_ps();
    float last[SK_BLOCK] = {0};
    for (int64_t at = 0; at < k; at += SK_BLOCK) {
        const float *from = k - at < SK_BLOCK ? memcpy(last, x + at, (size_t)(k - at) * sizeof *x) : x + at;
        sk_block *block = row->blocks + at / SK_BLOCK;
        __m256 early = load_halves(from), late = load_halves(from + 4);
        float most = sk_block_most(largest_group(early, late));
        __m256 factor = _mm256_set1_ps(SK_GROUP_LIMIT / most);
        block->scale = most * (1.0f / SK_GROUP_LIMIT);
        __m256i values = _mm256_packs_epi32(round_values(early, factor), round_values(late, factor));
        _mm_storeu_si128((__m128i *)block->values,
                         _mm_packs_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1)));
        __m256 pairs = _mm256_cvtepi32_ps(_mm256_madd_epi16(values, _mm256_set1_epi16(1)));
        total = _mm256_fmadd_ps(pairs, _mm256_set1_ps(block->scale), total);
        not_finite = _mm256_fmadd_ps(_mm256_add_ps(early, late), _mm256_setzero_ps(), not_finite);
    }
    row->offset = sum_lanes(not_finite) - SK_WEIGHT_OFFSET * sum_lanes(total);
}
#endif
