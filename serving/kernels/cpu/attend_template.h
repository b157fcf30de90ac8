/* Attention of ops.h, once for all instruction sets; ops_template.h includes it and says what they define. */
#include "blocks_template.h"

/* W floats as what keys and values are multiplied with. */
INLINE void store_factors(const int bf16, void *to, int64_t at, vf v) {
    store_as(to, at, v, bf16 && DOTS ? SK_BF16 : SK_F32);
}

/* Scores of one row to weights, in place, as factors: valid keys first, zeros after them up to the end of the tile.
 * Returns by how much what was summed before must shrink, and moves the row's maximum and sum of weights on. */
INLINE float weigh(const int bf16, float *scores, int64_t valid, int64_t end, float *max, float *total) {
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
        store_factors(bf16, scores, i, w);
        weights += w;
    }
    float shrink = most > *max ? exponential(splat(*max - most))[0] : 1.0f;
    *max = most;
    *total = *total * shrink + SUM(weights);
    return shrink;
}

/* Where a block's share of a head is, in bytes from the head's first. */
INLINE int64_t place_of(const sk_span *span, const sk_blocks *blocks, int64_t element, int64_t block) {
    return span->table[block] * blocks->stride * element;
}

/* scores[rows, count] = q k^T, for the keys from `begin` on. */
INLINE void score(const int bf16, const sk_span *span, const sk_blocks *blocks, const float *q, int64_t rows,
                  int64_t begin, int64_t count, float *scores, int64_t ld, upcoming *next) {
    const int64_t size = blocks->size, element = bf16 ? 2 : 4;
    const segments keys = {{blocks->data}, 1, 0, blocks->head_dim, blocks->lanes};
    const product p = {q, &keys, blocks->padded, ld, 0, next};
    for (int64_t at = 0; at < count;) {
        group groups[MOST_GROUPS];
        int found = 0;
        for (; found < MOST_GROUPS && at < count; found++) {
            int64_t lane = at % size, left = size - lane, block = (begin + at) / size;
            groups[found] = (group){place_of(span, blocks, element, block) + lane * LANE_BYTES, scores + at};
            at += left < SK_GROUP ? left : SK_GROUP;
        }
        (bf16 ? multiply_bf16 : multiply_f32)(&p, rows, groups, found);
    }
}

/* acc[rows, padded] += weights v, of the same keys. */
INLINE void add_values(const int bf16, const sk_span *span, const sk_blocks *blocks, const float *weights, int64_t rows,
                       int64_t begin, int64_t count, float *acc, int64_t ld, upcoming *next) {
    const int64_t size = blocks->size, element = bf16 ? 2 : 4, padded = blocks->padded;
    segments values = {.rows = size, .lanes = padded};
    const char *first = blocks->data + sk_head_keys(blocks) * element;
    for (int64_t at = 0; at < count; at += size, values.count++) {
        values.begin[values.count] = first + place_of(span, blocks, element, (begin + at) / size);
        values.last = count - at < size ? count - at : size;
    }
    const product p = {weights, &values, ld, padded, 1, next};
    for (int64_t d = 0; d < padded;) {
        group groups[MOST_GROUPS];
        int found = 0;
        for (; found < MOST_GROUPS && d < padded; found++, d += SK_GROUP)
            groups[found] = (group){d * LANE_BYTES, acc + d};
        (bf16 ? multiply_bf16 : multiply_f32)(&p, rows, groups, found);
    }
}

/* One tile after the first. */
INLINE upcoming first_upcoming(const int bf16, const sk_span *span, const sk_blocks *blocks) {
    const int64_t last = (span->first + span->queries - 1) / blocks->size, of_tile = sk_tile_tokens(blocks) / blocks->size;
    upcoming u = {.span = span, .blocks = blocks, .table = span->table, .last = last,
                  .block = of_tile - 1 < last ? of_tile - 1 : last, .lines = sk_head_elements(blocks) * (bf16 ? 2 : 4) / LINE};
    move_on(&u);
    return u;
}

INLINE void attend_as(const int bf16, const sk_span *span, const sk_blocks *blocks, float *scratch) {
    const int64_t rows = span->queries * span->heads, dim = blocks->head_dim, padded = blocks->padded;
    const int64_t tile = sk_tile_tokens(blocks), ld = tile + SK_GROUP, keys = span->first + span->queries;
    float *q = scratch, *acc = q + rows * padded, *scores = acc + rows * padded, *max = scores + rows * ld,
          *total = max + rows;
    for (int64_t r = 0; r < rows; r++) {
        const float *from = span->q + r / span->heads * span->q_stride + r % span->heads * dim;
        for (int64_t d = 0; d < dim; d += W) {
            vf v = dim - d < W ? load_some(from + d, dim - d) : load(from + d);
            store_factors(bf16, q + r * padded, d, v * splat(span->scale));
        }
        max[r] = -INFINITY;
        total[r] = 0.0f;
    }
    memset(acc, 0, (size_t)(rows * padded) * sizeof(float));
    upcoming next = first_upcoming(bf16, span, blocks);
    for (int64_t begin = 0; begin < keys; begin += tile) {
        const int64_t count = keys - begin < tile ? keys - begin : tile;
        score(bf16, span, blocks, q, rows, begin, count, scores, ld, &next);
        for (int64_t r = 0; r < rows; r++) {
            int64_t valid = span->first + r / span->heads + 1 - begin;
            float *row = scores + r * ld;
            if (valid <= 0) {
                memset(row, 0, (size_t)count * sizeof(float));
                continue;
            }
            float shrink = weigh(bf16, row, valid < count ? valid : count, count, &max[r], &total[r]);
            float *sums = acc + r * padded;
            if (shrink != 1.0f)
                for (int64_t d = 0; d < padded; d += W) store(sums + d, load(sums + d) * splat(shrink));
        }
        add_values(bf16, span, blocks, scores, rows, begin, count, acc, ld, &next);
    }
    for (int64_t r = 0; r < rows; r++) {
        const int64_t to = r / span->heads * span->out_stride + r % span->heads * dim;
        const float share = 1.0f / total[r];
        for (int64_t d = 0; d < dim; d += W) {
            vf v = load(acc + r * padded + d) * splat(share);
            if (dim - d < W)
                store_some_as(span->out, to + d, v, dim - d, span->out_dtype);
            else
                store_as(span->out, to + d, v, span->out_dtype);
        }
    }
}

TARGET static void attend(const sk_span *span, const sk_blocks *blocks, float *scratch) {
    if (blocks->dtype == SK_BF16)
        attend_as(1, span, blocks, scratch);
    else
        attend_as(0, span, blocks, scratch);
}
