/* The work on one row, or one block of attention, between two matrix products; one table per instruction set.
 *
 * Activations are float32. The embedding's weights are float32 or bfloat16, the KV cache may have 8 bits too.
 * Each result depends on its own row only, bit for bit: no order of summation follows from how rows are grouped.
 */
#ifndef SERVING_OPS_H
#define SERVING_OPS_H

#include <stdint.h>
#include <string.h>

#include "linear.h"

/* Lanes of a group of keys, and of a group of head dimensions: KV rows are padded to whole groups. */
enum { SK_GROUP = 16 };
/* Keys between two looks at the running maximum; a first-level cache holds that much K and V of one head. */
enum { SK_KEYS = 64 };
/* Query rows (positions x heads that share a KV head) attended together; four tiles of six. */
enum { SK_QUERY_ROWS = 24 };

static inline int64_t sk_padded(int64_t n) { return (n + SK_GROUP - 1) / SK_GROUP * SK_GROUP; }

/* Blocks of one layer and one KV head. A block of `size` tokens holds, in float32,
 *   keys   [head_dim, lanes]: token t in column t, lanes = size rounded up to SK_GROUP
 *   values [size, padded], right after them: padded = head_dim rounded up to SK_GROUP
 * and in bfloat16 the same with every two rows woven into one line of pairs, [head_dim / 2, lanes, 2] and
 * [(size + 1) / 2, padded, 2]: what one instruction multiplies, and in 32 bits what shifts to float32. In 8 bits they lie
 * likewise, integers of -127 to 127, and after them float32 factors, of the keys [lanes] and of the values [lanes]: each
 * token's largest key, and value, is 127 times its own.
 * Blocks begin `stride` elements apart; the next KV head's share of a block follows this one's. */
typedef struct {
    char *data;
    int64_t stride, size, lanes, head_dim, padded, dtype;
} sk_blocks;

static inline int64_t sk_head_keys(const sk_blocks *blocks) { return blocks->head_dim * blocks->lanes; }

/* Keys and values of a block that belong to one head. */
static inline int64_t sk_head_values(const sk_blocks *blocks) {
    return sk_head_keys(blocks) + (blocks->size + 1) / 2 * 2 * blocks->padded;
}

/* The same, and in 8 bits the factors. */
static inline int64_t sk_head_elements(const sk_blocks *blocks) {
    int64_t factors = blocks->dtype == SK_INT8 ? 2 * blocks->lanes * (int64_t)sizeof(float) : 0;
    return sk_head_values(blocks) + factors;
}

/* Consecutive query positions of one sequence, and the query heads that share one KV head. */
typedef struct {
    const float *q;         /* position i, head h: q + i * q_stride + h * head_dim */
    void *out;              /* likewise, with out_stride, of out_dtype */
    int64_t q_stride, out_stride, out_dtype, queries, heads;
    int64_t first;          /* position of the first query; it sees keys 0..first */
    const int32_t *table;   /* the sequence's blocks, in order */
    float scale;
    float cap;              /* scores become cap * tanh(score / cap); 0: they stay */
    int64_t window;         /* keys that a query sees, its own the last; 0: all */
} sk_span;

typedef struct {
    const char *name;
    int rounds;  /* whether beside bfloat16 keys and values queries and weights are rounded to bfloat16 as well */
    /* y = x * weight / sqrt(mean(x^2) + eps), of y_dtype: float32, or rounded to bfloat16 */
    void (*rms_norm)(const float *x, const float *weight, float eps, int64_t n, void *y, int64_t y_dtype);
    /* y = gate / (1 + exp(-gate)) * up, likewise */
    void (*silu_mul)(const float *gate, const float *up, int64_t n, void *y, int64_t y_dtype);
    /* Half-split rotation of one head, in place; cos and sin have half entries. */
    void (*rotate)(float *head, const float *cos, const float *sin, int64_t half);
    /* float32 from a row of either type */
    void (*widen)(const void *row, int64_t dtype, int64_t n, float *y);
    /* to[i] = the integer next to x[i] / factor, of -127 to 127; returns the factor, no finite one if a value is not.
     * `to` may be where x is. */
    float (*quantise)(const float *x, int64_t n, int8_t *to);
    /* Index of the largest value, the first of equals; -1 when a value is NaN or the largest is infinite. */
    int64_t (*argmax)(const float *x, int64_t n);
    /* Softmax attention with causal mask, and the span's window; scratch has sk_attend_floats() floats. Keys and values past a query's own
     * position never reach its result. */
    void (*attend)(const sk_span *span, const sk_blocks *blocks, float *scratch);
    /* as silu_mul, with GELU's tanh form */
    void (*gelu_mul)(const float *gate, const float *up, int64_t n, void *y, int64_t y_dtype);
    /* x = cap * tanh(x / cap), in place */
    void (*soft_cap)(float *x, float cap, int64_t n);
} sk_ops;

extern const sk_ops sk_ops_portable;
#if defined(__x86_64__)
extern const sk_ops sk_ops_avx2, sk_ops_avx512;
#endif

/* Tokens of a tile: whole blocks, so that tiles begin at the same positions whatever chunk a query came in. */
static inline int64_t sk_tile_tokens(const sk_blocks *blocks) {
    int64_t count = SK_KEYS / blocks->size;
    return (count ? count : 1) * blocks->size;
}

static inline int64_t sk_attend_floats(const sk_blocks *blocks, int64_t rows) {
    int64_t ld = sk_tile_tokens(blocks) + SK_GROUP;
    return rows * (2 * blocks->padded + ld + 4) + 2 * ld;
}

/* Return whether a table gives what the portable one gives, to rounding, on a fixed problem. */
int sk_ops_agree(const sk_ops *candidate);

#endif
