/* Attention of ops.h, once for all instruction sets; ops_template.h includes it and says what they define. */
#include "blocks_template.h"

/* Beside 8 bits: the factors of a tile's keys and values, and of one row's query. */
typedef struct {
    const float *keys, *values;
    float query;
    float largest;  /* of the values that the row sees */
    float limit;    /* the largest integer weight */
} tile_factors;

/* W floats as what keys and values are multiplied with, in 16 bits where pairs are. */
INLINE void store_factors(const int dtype, void *to, int64_t at, vf v) {
    if (dtype == SK_INT8 && INTEGERS) {
        vh values = __builtin_convertvector(nearest(v), vh);
        memcpy((int16_t *)to + at, &values, sizeof values);
    } else {
        store_as(to, at, v, dtype == SK_BF16 && DOTS ? SK_BF16 : SK_F32);
    }
}

/* The largest integers of whose products with 8 bits so many add up in 32. */
INLINE int64_t largest_integer(int64_t count) {
    int64_t most = INT32_MAX / (127 * count);
    return most < INT16_MAX ? most : INT16_MAX;
}

/* W scores, as they would be of float32 keys. */
INLINE vf scores_at(const float *scores, int64_t i, const tile_factors *f) {
    vf sums = load(scores + i);
    if (INTEGERS) sums = __builtin_convertvector((vi)sums, vf);
    return sums * splat(f->query) * load(f->keys + i);
}

/* Weights from `at` on, of which `valid` are of keys that the row sees, beside the factors of their values. */
INLINE vf scale_weights(vf w, int64_t at, int64_t valid, vf to_integers, const tile_factors *f) {
    vf scaled = w * (to_integers * load(f->values + at));
    /* The factor of a later token may be NaN. */
    return at + W <= valid ? scaled : blend(w > splat(0.0f), scaled, splat(0.0f));
}

/* Scores of one row to weights, in place, as factors: those of keys from `from` up to `valid`, zeros around them up to
 * the end of the tile.
 * Returns by how much what was summed before must shrink, and moves the row's maximum and sum of weights on. */
INLINE float weigh(const int dtype, float *scores, int64_t from, int64_t valid, int64_t end, float cap, float *max,
                   float *total, const tile_factors *f) {
    vf top = splat(*max);
    int64_t i;
    for (i = 0; i < valid; i += W) {
        vf s = dtype == SK_INT8 ? scores_at(scores, i, f) : load(scores + i);
        if (cap != 0.0f) s = cap_softly(s, cap);
        if (i < from) s = blend(places() < (int32_t)(from - i), splat(-INFINITY), s);
        if (i + W > valid) s = blend(places() < (int32_t)(valid - i), s, splat(-INFINITY));
        if (dtype == SK_INT8 || cap != 0.0f || i < from || i + W > valid) store(scores + i, s);
        top = blend(s > top, s, top);
    }
    /* Past the tile's end lies the row's padding. */
    for (; i < end; i += W) store(scores + i, splat(-INFINITY));
    const float most = LARGEST(top);
    vf weights = splat(0.0f), to_integers = splat(1.0f);
    if (dtype == SK_INT8 && INTEGERS) to_integers = splat(f->largest > LEAST ? f->limit / f->largest : 0.0f);
    for (i = 0; i < end; i += W) {
        vf w = exponential(load(scores + i) - splat(most));
        weights += w;
        store_factors(dtype, scores, i, dtype == SK_INT8 ? scale_weights(w, i, valid, to_integers, f) : w);
    }
    float shrink = most > *max ? exponential(splat(*max - most))[0] : 1.0f;
    *max = most;
    *total = *total * shrink + SUM(weights);
    return shrink;
}

/* Return how far a block's share of a head is from the head's first, in bytes. */
INLINE int64_t place_of(const int dtype, const sk_span *span, const sk_blocks *blocks, int64_t block) {
    return span->table[block] * blocks->stride * lk_element_size(dtype);
}

/* scores[rows, count] = q k^T, for the keys from `begin` on. */
INLINE void score(const int dtype, const sk_span *span, const sk_blocks *blocks, const float *q, int64_t rows,
                  int64_t begin, int64_t count, float *scores, int64_t ld) {
    const int64_t size = blocks->size;
    const segments keys = {{blocks->data}, 1, 0, blocks->head_dim, blocks->lanes};
    const product p = {q, &keys, blocks->padded, ld, 0, NULL};
    for (int64_t at = 0; at < count;) {
        group groups[MOST_GROUPS];
        int found = 0;
        for (; found < MOST_GROUPS && at < count; found++) {
            int64_t lane = at % size, left = size - lane, block = (begin + at) / size;
            groups[found] = (group){place_of(dtype, span, blocks, block) + lane * lane_bytes(dtype), scores + at};
            at += left < SK_GROUP ? left : SK_GROUP;
        }
        multiply_as(dtype, &p, rows, groups, found);
    }
}

/* acc[rows, padded] += weights v, of the same keys. */
INLINE void add_values(const int dtype, const sk_span *span, const sk_blocks *blocks, const float *weights, int64_t rows,
                       int64_t begin, int64_t count, float *acc, int64_t ld, const float *weight_factors) {
    const int64_t size = blocks->size, padded = blocks->padded;
    segments values = {.rows = size, .lanes = padded};
    const char *first = blocks->data + sk_head_keys(blocks) * lk_element_size(dtype);
    for (int64_t at = 0; at < count; at += size, values.count++) {
        values.begin[values.count] = first + place_of(dtype, span, blocks, (begin + at) / size);
        values.last = count - at < size ? count - at : size;
    }
    const product p = {weights, &values, ld, padded, 1, weight_factors};
    for (int64_t d = 0; d < padded;) {
        group groups[MOST_GROUPS];
        int found = 0;
        for (; found < MOST_GROUPS && d < padded; found++, d += SK_GROUP)
            groups[found] = (group){d * lane_bytes(dtype), acc + d};
        multiply_as(dtype, &p, rows, groups, found);
    }
}

/* The factors of a tile's keys and values, side by side; what follows them in the last block's lanes comes along.
 * Vectors instead of memcpy, whose calls for 64 bytes each took 3 % of 32 rows. */
INLINE void gather_factors(const sk_span *span, const sk_blocks *blocks, int64_t begin, int64_t count, float *keys,
                           float *values) {
    const int64_t size = blocks->size;
    for (int64_t at = 0; at < count; at += size) {
        const float *of_keys = (const float *)(blocks->data + place_of(SK_INT8, span, blocks, (begin + at) / size) +
                                               sk_head_values(blocks));
        const int64_t left = count - at < size ? count - at : size;
        for (int64_t i = 0; i < left; i += W) {
            store(keys + at + i, load(of_keys + i));
            store(values + at + i, load(of_keys + blocks->lanes + i));
        }
    }
}

/* One row of queries as factors; returns what the products with integers are to be multiplied with. */
INLINE float take_query(const int dtype, const sk_span *span, const sk_blocks *blocks, int64_t row, float *to) {
    const int64_t dim = blocks->head_dim;
    const float *from = span->q + row / span->heads * span->q_stride + row % span->heads * dim;
    float factor = span->scale, back = 1.0f;
    if (dtype == SK_INT8 && INTEGERS) {
        const float most = largest_size(from, dim), integers = (float)largest_integer(dim);
        factor = most > LEAST ? integers / most : 0.0f;
        back = most / integers * span->scale;
    }
    for (int64_t d = 0; d < dim; d += W)
        store_factors(dtype, to, d, load_left(from + d, dim - d) * splat(factor));
    return back;
}

/* The first key that the query at this position sees. */
INLINE int64_t first_key(const sk_span *span, int64_t position) {
    return span->window && position >= span->window ? position - span->window + 1 : 0;
}

INLINE void attend_as(const int dtype, const sk_span *span, const sk_blocks *blocks, float *scratch) {
    const int64_t rows = span->queries * span->heads, dim = blocks->head_dim, padded = blocks->padded;
    const int64_t tile = sk_tile_tokens(blocks), ld = tile + SK_GROUP, keys = span->first + span->queries;
    float *q = scratch, *acc = q + rows * padded, *scores = acc + rows * padded, *max = scores + rows * ld,
          *total = max + rows, *of_queries = total + rows, *of_weights = of_queries + rows, *of_keys = of_weights + rows,
          *of_values = of_keys + ld;
    for (int64_t r = 0; r < rows; r++) {
        of_queries[r] = take_query(dtype, span, blocks, r, q + r * padded);
        max[r] = -INFINITY;
        total[r] = 0.0f;
    }
    memset(acc, 0, (size_t)(rows * padded) * sizeof(float));
    for (int64_t begin = first_key(span, span->first) / tile * tile; begin < keys; begin += tile) {
        const int64_t count = keys - begin < tile ? keys - begin : tile;
        float largest = 0.0f;
        if (dtype == SK_INT8) {
            gather_factors(span, blocks, begin, count, of_keys, of_values);
            largest = largest_size(of_values, count);
        }
        score(dtype, span, blocks, q, rows, begin, count, scores, ld);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t position = span->first + r / span->heads, from = first_key(span, position) - begin;
            int64_t valid = position + 1 - begin;
            float *row = scores + r * ld;
            if (valid <= 0 || from >= count) {
                memset(row, 0, (size_t)count * sizeof(float));
                of_weights[r] = 0.0f;
                continue;
            }
            if (valid > count) valid = count;
            tile_factors f = {of_keys, of_values, of_queries[r], largest, (float)largest_integer(tile)};
            if (dtype == SK_INT8) {
                if (valid < count) f.largest = largest_size(of_values, valid);
                of_weights[r] = f.largest / f.limit;
            }
            float shrink = weigh(dtype, row, from, valid, count, span->cap, &max[r], &total[r], &f);
            float *sums = acc + r * padded;
            if (shrink != 1.0f)
                for (int64_t d = 0; d < padded; d += W) store(sums + d, load(sums + d) * splat(shrink));
        }
        add_values(dtype, span, blocks, scores, rows, begin, count, acc, ld, of_weights);
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
    if (blocks->dtype == SK_INT8)
        attend_as(SK_INT8, span, blocks, scratch);
    else if (blocks->dtype == SK_BF16)
        attend_as(SK_BF16, span, blocks, scratch);
    else
        attend_as(SK_F32, span, blocks, scratch);
}
