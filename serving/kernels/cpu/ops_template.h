/* The operations of ops.h, once for all instruction sets. The including file defines
 *   W       lanes of a float vector (4, 8 or 16)
 *   TARGET  function attribute that switches the instruction set on, or nothing
 *   FMA     a * b + c of vectors
 *   WIDEN   a vector of uint16 to one of int32
 *   SUM, LARGEST  of a vector's lanes, in any order; where they are left out, one lane after the other
 *   OPS     the table, and OPS_NAME its name
 */
#include <float.h>
#include <math.h>

#include "ops.h"

#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));

/* Vectors in a group of SK_GROUP lanes, and rows of a tile: of two groups where a group is one vector, as there are 32
 * registers then, else of one. */
enum { NV = SK_GROUP / W, TILE_ROWS = NV == 1 ? 12 : 6 };
/* Bytes of a cache line. */
enum { LINE = 64 };

INLINE vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }

/* The first n < W values, zeros after them. */
INLINE vf load_some(const float *p, int64_t n) {
    float lanes[W] = {0};
    memcpy(lanes, p, (size_t)n * sizeof(float));
    return load(lanes);
}

INLINE void store_some(float *p, vf v, int64_t n) {
    float lanes[W];
    store(lanes, v);
    memcpy(p, lanes, (size_t)n * sizeof(float));
}

INLINE vf load_as(const void *p, int64_t at, const int bf16) {
    if (!bf16) return load((const float *)p + at);
    vh half;
    memcpy(&half, (const uint16_t *)p + at, sizeof half);
    return (vf)(WIDEN(half) << 16);
}

INLINE vf splat(float x) { return x - (vf){0}; }

INLINE vf blend(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

#ifndef SUM
#define SUM(v) sum(v)
#define LARGEST(v) largest(v)
INLINE float sum(vf v) {
    float total = v[0];
    for (int i = 1; i < W; i++) total += v[i];
    return total;
}

INLINE float largest(vf v) {
    float most = v[0];
    for (int i = 1; i < W; i++) most = v[i] > most ? v[i] : most;
    return most;
}
#endif

/* Cephes' expf: 2 ulp; 0 below -87.3, infinite above 88.3, NaN for NaN. */
INLINE vf exponential(vf x) {
    vf shifted = FMA(x, splat(1.44269504088896341f), splat(12582912.0f));  /* 1.5 * 2^23: low bits hold the integer */
    vf n = shifted - splat(12582912.0f);
    vf r = FMA(n, splat(-0.693359375f), x);
    r = FMA(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = FMA(p, r, splat(1.3981999507e-3f));
    p = FMA(p, r, splat(8.3334519073e-3f));
    p = FMA(p, r, splat(4.1665795894e-2f));
    p = FMA(p, r, splat(1.6666665459e-1f));
    p = FMA(p, r, splat(5.0000001201e-1f));
    vf y = FMA(p, r * r, r) + splat(1.0f);
    y = (vf)((vi)y + ((vi)shifted << 23));
    y = blend(x < splat(-87.3f), splat(0.0f), y);
    y = blend(x > splat(88.3f), splat(INFINITY), y);
    return blend(x == x, y, x);
}

TARGET static void rms_norm(const float *x, const float *weight, float eps, int64_t n, float *y) {
    vf squares[2] = {{0}, {0}};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        for (int j = 0; j < 2; j++) {
            vf v = load(x + i + j * W);
            squares[j] = FMA(v, v, squares[j]);
        }
    for (; i < n; i += W) {
        vf v = n - i < W ? load_some(x + i, n - i) : load(x + i);
        squares[0] = FMA(v, v, squares[0]);
    }
    float factor = 1.0f / sqrtf(SUM(squares[0] + squares[1]) / (float)n + eps);
    for (i = 0; i + W <= n; i += W) store(y + i, load(x + i) * splat(factor) * load(weight + i));
    for (; i < n; i++) y[i] = x[i] * factor * weight[i];
}

INLINE vf silu(vf gate, vf up) { return gate / (splat(1.0f) + exponential(-gate)) * up; }

TARGET static void silu_mul(const float *gate, const float *up, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store(y + i, silu(load(gate + i), load(up + i)));
    if (i < n) store_some(y + i, silu(load_some(gate + i, n - i), load_some(up + i, n - i)), n - i);
}

TARGET static void rotate(float *head, const float *cos, const float *sin, int64_t half) {
    int64_t i = 0;
    for (; i + W <= half; i += W) {
        vf a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
        store(head + i, a * c - b * s);
        store(head + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = b * cos[i] + a * sin[i];
    }
}

TARGET static void widen(const void *row, int64_t dtype, int64_t n, float *y) {
    if (dtype == SK_F32) {
        memcpy(y, row, (size_t)n * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n; i++) y[i] = sk_from_bf16(((const uint16_t *)row)[i]);
}

TARGET static int64_t argmax(const float *x, int64_t n) {
    vf best = splat(-INFINITY);
    vi at = {0}, index, good = ~(vi){0};
    for (int i = 0; i < W; i++) index[i] = i;
    int64_t i = 0;
    for (; i + W <= n; i += W, index += W) {
        vf v = load(x + i);
        vi larger = v > best;
        good &= v <= splat(FLT_MAX);  /* false for NaN */
        best = blend(larger, v, best);
        at = (larger & index) | (~larger & at);
    }
    float top = -INFINITY;
    int64_t found = -1;
    for (int j = 0; j < W; j++) {
        if (!good[j]) return -1;
        if (best[j] > top || (best[j] == top && at[j] < found)) top = best[j], found = at[j];
    }
    for (; i < n; i++) {
        if (!(x[i] <= FLT_MAX)) return -1;
        if (x[i] > top) top = x[i], found = i;
    }
    return isfinite(top) ? found : -1;
}

/* A group of 16 columns of b, each row ldb apart, and where its products go. */
typedef struct {
    const char *b;
    float *c;
} group;

/* c[R, 16] (+)= a[R, k] b[k, 16] for G groups. Every number of c is one chain of FMAs over k, whatever R and G are. */
INLINE void rows_times_groups(const int R, const int G, const int bf16, const float *a, int64_t lda, const group *groups,
                              int64_t ldb, int64_t k, int64_t row, int64_t ldc, int add, const char *ahead) {
    vf acc[TILE_ROWS][2][NV];
    a += row * lda;
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int g = 0; g < G; g++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++)
                acc[r][g][v] = add ? load(groups[g].c + (row + r) * ldc + v * W) : splat(0.0f);
    /* What there is less of stays in registers: 12 sums of two vectors each, 3 factors and one vector fill 16. */
    const int factors_stay = G == 2 && NV > 1;
    for (int64_t i = 0; i < k; i++) {
        __builtin_prefetch(ahead + i * LINE, 0, 2);
        vf factor[6], w[2][NV];
#pragma GCC unroll 6
        for (int r = 0; r < R && factors_stay; r++) factor[r] = splat(a[r * lda + i]);
#pragma GCC unroll 2
        for (int g = 0; g < G && factors_stay; g++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) {
                vf lone = load_as(groups[g].b, i * ldb + v * W, bf16);
#pragma GCC unroll 6
                for (int r = 0; r < R; r++) acc[r][g][v] = FMA(factor[r], lone, acc[r][g][v]);
            }
#pragma GCC unroll 2
        for (int g = 0; g < G && !factors_stay; g++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) w[g][v] = load_as(groups[g].b, i * ldb + v * W, bf16);
#pragma GCC unroll 12
        for (int r = 0; r < R && !factors_stay; r++) {
            vf f = splat(a[r * lda + i]);
#pragma GCC unroll 2
            for (int g = 0; g < G; g++)
#pragma GCC unroll 4
                for (int v = 0; v < NV; v++) acc[r][g][v] = FMA(f, w[g][v], acc[r][g][v]);
        }
    }
    /* Groups in order: the second may begin where unused lanes of the first end up. */
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int g = 0; g < G; g++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) store(groups[g].c + (row + r) * ldc + v * W, acc[r][g][v]);
}

/* All rows, one or two groups. Three rows or fewer take both at once: alone each FMA would wait for the one before. */
INLINE void times_groups(const int bf16, int64_t rows, const float *a, int64_t lda, const group *groups, int count,
                         int64_t ldb, int64_t k, int64_t ldc, int add, const char *ahead) {
#define ROWS(R, G, g) rows_times_groups(R, G, bf16, a, lda, groups + (g), ldb, k, row, ldc, add, ahead)
    int64_t row = 0;
#if W == 16
    for (; count == 2 && rows - row >= 12; row += 12) ROWS(12, 2, 0);
    for (; count == 2 && rows - row >= 6; row += 6) ROWS(6, 2, 0);
#endif
    for (; rows - row >= 6; row += 6)
        for (int g = 0; g < count; g++) ROWS(6, 1, g);
    if (count == 2 && rows - row <= 3) {
        switch (rows - row) {
        case 3: ROWS(3, 2, 0); break;
        case 2: ROWS(2, 2, 0); break;
        case 1: ROWS(1, 2, 0); break;
        }
        return;
    }
    for (int g = 0; g < count; g++) switch (rows - row) {
        case 5: ROWS(5, 1, g); break;
        case 4: ROWS(4, 1, g); break;
        case 3: ROWS(3, 1, g); break;
        case 2: ROWS(2, 1, g); break;
        case 1: ROWS(1, 1, g); break;
        }
#undef ROWS
}

/* Not inlined: within `attend` sums would leave their registers. */
TARGET static __attribute__((noinline)) void times_f32(int64_t rows, const float *a, int64_t lda, const group *groups,
                                                       int count, int64_t ldb, int64_t k, int64_t ldc, int add,
                                                       const char *ahead) {
    times_groups(0, rows, a, lda, groups, count, ldb, k, ldc, add, ahead);
}

TARGET static __attribute__((noinline)) void times_bf16(int64_t rows, const float *a, int64_t lda, const group *groups,
                                                        int count, int64_t ldb, int64_t k, int64_t ldc, int add,
                                                        const char *ahead) {
    times_groups(1, rows, a, lda, groups, count, ldb, k, ldc, add, ahead);
}

/* What will be read one tile from now, a line for each turn of the inner loops. Blocks lie scattered, so the processor's
 * own prefetch begins anew at each; and a burst of prefetches would stall what it should hide behind. Into the
 * second-level cache: fetched into the first, lines on their way from memory hold up what is in the second already, and
 * attention of 16 and 32 rows takes 16 % longer on Zen 4, with AVX2 9. */
typedef struct {
    const char *data;
    const int32_t *table;
    int64_t block, last, offset, stride, head;  /* bytes but for block numbers */
    int64_t tile;
    int more;
} upcoming;

INLINE const char *take(upcoming *u, int64_t lines) {
    if (u->offset >= u->head) {
        u->offset = 0;
        u->block++;
    }
    if (u->block > u->last && u->more) {
        u->block = u->more = 0;
        u->data += u->head;
        u->last = u->tile - 1 < u->last ? u->tile - 1 : u->last;
    }
    const char *at = u->data + u->table[u->block <= u->last ? u->block : u->last] * u->stride + u->offset;
    u->offset += lines * LINE;
    return at;
}

/* Scores of one row to weights, in place: valid keys first, zeros after them up to the end of the tile. Returns by how
 * much what was summed before must shrink, and moves the row's maximum and sum of weights on. */
INLINE float weigh(float *scores, int64_t valid, int64_t end, float *max, float *total) {
    vf top = splat(*max);
    int64_t i;
    for (i = 0; i + W <= valid; i += W) {
        vf s = load(scores + i);
        top = blend(s > top, s, top);
    }
    float most = LARGEST(top);
    for (; i < valid; i++) most = scores[i] > most ? scores[i] : most;
    for (i = valid; i < end; i++) scores[i] = -INFINITY;
    vf weights = splat(0.0f);
    for (i = 0; i < end; i += W) {
        /* Past the tile's end lies the row's padding: read, made zero, never used. */
        if (i + W > end)
            for (int64_t j = end; j < i + W; j++) scores[j] = -INFINITY;
        vf w = exponential(load(scores + i) - splat(most));
        store(scores + i, w);
        weights += w;
    }
    float shrink = most > *max ? exponential(splat(*max - most))[0] : 1.0f;
    *max = most;
    *total = *total * shrink + SUM(weights);
    return shrink;
}

INLINE void attend_as(const int bf16, const sk_span *span, const sk_blocks *blocks, float *scratch) {
    const int64_t rows = span->queries * span->heads, dim = blocks->head_dim, padded = blocks->padded;
    void (*const times)(int64_t, const float *, int64_t, const group *, int, int64_t, int64_t, int64_t, int, const char *) =
        bf16 ? times_bf16 : times_f32;
    const int64_t tile = sk_tile_tokens(blocks), ld = tile + SK_GROUP, element = bf16 ? 2 : 4;
    float *q = scratch, *acc = q + rows * dim, *scores = acc + rows * padded, *max = scores + rows * ld,
          *total = max + rows;
    for (int64_t r = 0; r < rows; r++) {
        const float *from = span->q + r / span->heads * span->q_stride + r % span->heads * dim;
        for (int64_t d = 0; d < dim; d++) q[r * dim + d] = from[d] * span->scale;
        max[r] = -INFINITY;
        total[r] = 0.0f;
    }
    memset(acc, 0, (size_t)(rows * padded) * sizeof(float));
    const int64_t keys = span->first + span->queries, size = blocks->size;
    upcoming next = {blocks->data, span->table, tile / size, (keys - 1) / size, 0, blocks->stride * element,
                     sk_head_elements(blocks) * element, tile / size, span->more};
    for (int64_t begin = 0; begin < keys; begin += tile) {
        const int64_t end = keys - begin < tile ? keys - begin : tile;
        const int32_t *table = span->table + begin / size;
        for (int64_t at = 0; at < end;) {
            group groups[2];
            int count = 0;
            for (; count < 2 && at < end; count++) {
                int64_t lane = at % size, left = size - lane;
                const char *k = blocks->data + (table[at / size] * blocks->stride + lane) * element;
                groups[count] = (group){k, scores + at};
                at += left < SK_GROUP ? left : SK_GROUP;
            }
            times(rows, q, dim, groups, count, blocks->lanes, dim, ld, 0, take(&next, dim));
        }
        for (int64_t r = 0; r < rows; r++) {
            int64_t valid = span->first + r / span->heads + 1 - begin;
            float *row = scores + r * ld;
            if (valid <= 0) {
                memset(row, 0, (size_t)end * sizeof(float));
                continue;
            }
            float shrink = weigh(row, valid < end ? valid : end, end, &max[r], &total[r]);
            float *sums = acc + r * padded;
            if (shrink != 1.0f)
                for (int64_t d = 0; d < padded; d += W) store(sums + d, load(sums + d) * splat(shrink));
        }
        for (int64_t at = 0; at < end; at += size) {
            const char *v = blocks->data + (table[at / size] * blocks->stride + sk_head_keys(blocks)) * element;
            int64_t used = end - at < size ? end - at : size;
            for (int64_t d = 0; d < padded; d += 2 * SK_GROUP) {
                group groups[2] = {{v + d * element, acc + d}, {v + (d + SK_GROUP) * element, acc + d + SK_GROUP}};
                times(rows, scores + at, ld, groups, d + SK_GROUP < padded ? 2 : 1, padded, used, padded, 1,
                      take(&next, used));
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        float *to = span->out + r / span->heads * span->out_stride + r % span->heads * dim;
        for (int64_t d = 0; d < dim; d++) to[d] = acc[r * padded + d] / total[r];
    }
}

TARGET static void attend(const sk_span *span, const sk_blocks *blocks, float *scratch) {
    if (blocks->dtype == SK_BF16)
        attend_as(1, span, blocks, scratch);
    else
        attend_as(0, span, blocks, scratch);
}

const sk_ops OPS = {OPS_NAME, rms_norm, silu_mul, rotate, widen, argmax, attend};
