/* AVX-512: 8-bit weights, with vpdpbusd of AVX512-VNNI; rows as sk_shifted.
 *
 * On Zen 5 vpdpbusd, two a cycle, shares its ports with every floating-point product: one for each 4 of them, to scale
 * 16 of k, is a fifth of the peak. Shifts and additions of integers have ports of their own. So 6 rows x 2 panels: 12
 * registers are sums of 16 of k, 12 of 128, and only those are scaled: 430 of 502 * 10^9 products a second, where a
 * scale for each 16 had 350. More rows are two groups, each block of weights for one after the other. / */
#if defined(__x86_64__)
#include "linear_avx512.h"

enum { TURN_BYTES = SK_BLOCK * SK_PANEL, LINES = TURN_BYTES / 64, TURNS = SK_WIDE / SK_BLOCK };

/* The type that vpdpbusd's builtin has: with sums of __m512i, gcc 12 copies two registers for every one. */
typedef int32_t sums_of_int __attribute__((vector_size(64)));
typedef sums_of_int group_sums[4][SK_TILE_ROWS];

/* Rows of a group: with one panel the registers are enough for 12. */
INLINE int group_rows(const int rows, const int panels) {
    return panels == 1 || rows <= SK_TILE_ROWS / 2 ? rows : (rows + 1) / 2;
}

/* Rows of a tile or a part of one, at most 12: a base for each three. */
typedef struct {
    const char *bases[4];
    int64_t stride;
} x_rows;

INLINE x_rows rows_at(const char *x, int64_t stride) {
    return (x_rows){{x, x + 3 * stride, x + 6 * stride, x + 9 * stride}, stride};
}

INLINE const char *at_row(const x_rows *x, int r) { return row_of(x->bases, x->stride, r); }

INLINE float load_float(const char *at) {
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE void set_zero(const int rows, const int panels, group_sums sum) {
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sum[p][r] = (sums_of_int)_mm512_setzero_si512();
}

/* 16 of k: sum += x W^T. */
INLINE void multiply_turn(const int rows, const int panels, const char *w, int64_t panel_bytes, const x_rows *x,
                          group_sums sum) {
    group_sums dot;
    set_zero(rows, panels, dot);
#pragma GCC unroll 4
    for (int quad = 0; quad < SK_BLOCK / 4; quad++) {
        __m512i weights[4];
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) weights[p] = _mm512_loadu_si512(w + p * panel_bytes + quad * 64);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            __m512i value = _mm512_set1_epi32(load_int(at_row(x, r) + 4 * quad));
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++)
                dot[p][r] = (sums_of_int)_mm512_dpbusd_epi32((__m512i)dot[p][r], weights[p], value);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        __m512i shift = _mm512_set1_epi32(load_int(at_row(x, r) + offsetof(sk_shifted, shift)));
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sum[p][r] += (sums_of_int)_mm512_sllv_epi32((__m512i)dot[p][r], shift);
    }
}

/* How far a tile is with its prefetches. */
typedef struct {
    const sk_ahead *piece;
    const char *at;
    int64_t turns;
} place;

INLINE void fetch_turn(place *ahead, const int panels, const int first_line, const int lines) {
    while (!ahead->turns) {
        ahead->piece++;
        *ahead = (place){ahead->piece, ahead->piece->at, ahead->piece->turns};
    }
    fetch(ahead->at + first_line * 64, panels, ahead->piece->panel_step, lines);
    ahead->at += ahead->piece->step;
    ahead->turns--;
}

/* One block of k for a group of rows: sums[rows][panels] += x W^T; of each turn's lines some are fetched. */
INLINE void multiply_block(const int rows, const int panels, int64_t turns, const char *w, int64_t panel_bytes,
                           x_rows *x, place *ahead, const int first_line, const int lines, __m512 *sums) {
    group_sums sum;
    set_zero(rows, panels, sum);
    for (; turns; turns--, w += TURN_BYTES) {
        fetch_turn(ahead, panels, first_line, lines);
        multiply_turn(rows, panels, w, panel_bytes, x, sum);
        move_bases(x->bases, sizeof(sk_shifted));
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++, sums++)
            *sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum[p][r]), _mm512_set1_ps(load_float(at_row(x, r))),
                                    *sums);
    move_bases(x->bases, sizeof(float));
}

INLINE void tile_integer(const int rows, const int panels, const sk_tile *t) {
    const int early = group_rows(rows, panels), late = rows - early;
    const char *w = t->w, *x = t->x + sizeof(float);
    x_rows first = rows_at(x, t->x_stride), second = rows_at(x + early * t->x_stride, t->x_stride);
    __m512 memory[2 * SK_TILE_ROWS], *sums = memory;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) sums[r * panels + p] = _mm512_set1_ps(load_float(t->x + r * t->x_stride));
    place ahead = {t->ahead, t->ahead->at, t->ahead->turns};
    for (int64_t k = 0; k < t->k; k += SK_WIDE, w += SK_WIDE * SK_PANEL) {
        const int64_t turns = (t->k - k < SK_WIDE ? t->k - k : SK_WIDE) / SK_BLOCK;
        place again = ahead;
        /* Or gcc holds the sums in variables too. */
        __asm__("" : "+r"(sums) : : "memory");
        multiply_block(early, panels, turns, w, t->panel_bytes, &first, &ahead, 0, late ? LINES / 2 : LINES, sums);
        if (late)
            multiply_block(late, panels, turns, w, t->panel_bytes, &second, &again, LINES / 2, LINES / 2,
                           sums + early * panels);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            float *y = t->y + r * t->ldy + p * SK_PANEL;
            __m512 start = t->from_y ? _mm512_loadu_ps(y) : _mm512_setzero_ps();
            __m512 scales = _mm512_loadu_ps(t->scales + p * SK_PANEL);
            _mm512_storeu_ps(y, _mm512_fmadd_ps(sums[r * panels + p], scales, start));
        }
}

#define TILE(rows, panels) tile_integer(rows, panels, t)
AVX512 void sk_avx512_tile_int8(const sk_tile *t) { TILES }
#undef TILE

/* Factors on x of a block, and how far its sums are shifted, at a turn's lane; the block's scale. */
typedef struct {
    float factors[16];
    int32_t shifts[16];
    float scale;
} scaling;

INLINE int lane_of(const int turn) { return turn % 4 * 4 + turn / 4 * 2; }

INLINE __m512i larger(__m512i a, __m512i b) { return _mm512_max_epu32(a, b); }

/* The largest |x| of each turn of a block, in its lane and the next, as bits: infinity above every number, NaN above
 * infinity. All turns at once: turn by turn it would be three times the instructions. */
INLINE __m512i largest_of_turns(const float *x) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most[TURNS];
#pragma GCC unroll 8
    for (int i = 0; i < TURNS; i++) most[i] = _mm512_loadu_si512(x + i * SK_BLOCK) & magnitude;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        most[i] = larger(_mm512_shuffle_i64x2(most[2 * i], most[2 * i + 1], 0x44),
                         _mm512_shuffle_i64x2(most[2 * i], most[2 * i + 1], 0xee));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        most[i] = larger(_mm512_shuffle_i64x2(most[2 * i], most[2 * i + 1], 0x88),
                         _mm512_shuffle_i64x2(most[2 * i], most[2 * i + 1], 0xdd));
    __m512i pairs = larger(_mm512_unpacklo_epi64(most[0], most[1]), _mm512_unpackhi_epi64(most[0], most[1]));
    return larger(pairs, _mm512_shuffle_epi32(pairs, 0xb1));
}

INLINE __m512i largest_lane(__m512i pairs) {
    __m512i most = larger(pairs, _mm512_shuffle_epi32(pairs, 0x4e));
    most = larger(most, _mm512_shuffle_i64x2(most, most, 0x4e));
    return larger(most, _mm512_shuffle_i64x2(most, most, 0xb1));
}

/* See sk_shifted. A difference of two floats' bits, its last 23 cut off, is the power of two in their quotient. */
INLINE void scale_block(const float *x, scaling *out, __m512 *not_finite) {
    const __m512i least = (__m512i)_mm512_set1_ps(sk_block_most(0));
    __m512i most = largest_of_turns(x);
    *not_finite = _mm512_fmadd_ps((__m512)most, _mm512_setzero_ps(), *not_finite);
    most = larger(most, least);
    __m512i top = largest_lane(most);
    sums_of_int power = ((sums_of_int)top - (sums_of_int)most) >> 23;
    power = (sums_of_int)_mm512_min_epi32((__m512i)power, _mm512_set1_epi32(SK_MOST_SHIFT));
    sums_of_int factor = (sums_of_int)(_mm512_set1_ps(127) / (__m512)top);
    _mm512_storeu_si512(out->factors, (__m512i)(factor + (power << 23)));
    _mm512_storeu_si512(out->shifts, (__m512i)(SK_MOST_SHIFT - power));
    out->scale = ((__m512)top)[0] * SK_SHIFTED_UNIT;
}

INLINE char *round_block(const float *x, const int turns, const scaling *scaling, char *at, __m512 *total) {
    sums_of_int sum = (sums_of_int)_mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < turns; i++, at += sizeof(sk_shifted)) {
        sk_shifted *out = (sk_shifted *)at;
        __m512 scaled = _mm512_loadu_ps(x + i * SK_BLOCK) * _mm512_set1_ps(scaling->factors[lane_of(i)]);
        __m512i values = _mm512_cvtps_epi32(scaled);
        out->shift = scaling->shifts[lane_of(i)];
        sum += (sums_of_int)_mm512_sllv_epi32(values, _mm512_set1_epi32(out->shift));
        _mm_storeu_si128((__m128i *)out->values, _mm512_cvtsepi32_epi8(values));
    }
    memcpy(at, &scaling->scale, sizeof(float));
    *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum), _mm512_set1_ps(scaling->scale), *total);
    return at + sizeof(float);
}

/* Scales first, several blocks of them: each is a long chain, and in one loop with the rounding too few would be under
 * way at once, two thirds of the speed. */
AVX512 void sk_avx512_quantise_row(const float *x, int64_t k, void *out) {
    enum { BLOCKS = 8 };
    scaling scalings[BLOCKS];
    __m512 total = _mm512_setzero_ps(), not_finite = _mm512_setzero_ps();
    char *at = (char *)out + sizeof(float);
    while (k >= SK_WIDE) {
        const int64_t blocks = k / SK_WIDE < BLOCKS ? k / SK_WIDE : BLOCKS;
        for (int64_t i = 0; i < blocks; i++) scale_block(x + i * SK_WIDE, &scalings[i], &not_finite);
        for (int64_t i = 0; i < blocks; i++) at = round_block(x + i * SK_WIDE, TURNS, &scalings[i], at, &total);
        x += blocks * SK_WIDE;
        k -= blocks * SK_WIDE;
    }
    if (k) {
        float last[SK_WIDE] = {0};
        memcpy(last, x, (size_t)k * sizeof *x);
        scale_block(last, scalings, &not_finite);
        round_block(last, (int)((k + SK_BLOCK - 1) / SK_BLOCK), scalings, at, &total);
    }
    float offset = _mm512_reduce_add_ps(not_finite) - SK_WEIGHT_OFFSET * _mm512_reduce_add_ps(total);
    memcpy(out, &offset, sizeof offset);
}
#endif
