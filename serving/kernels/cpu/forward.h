/* One engine step: a whole forward pass over packed rows in one call, one parallel region, no allocation.
 *
 * Rows are tokens. A chunk is consecutive tokens of one sequence; its rows lie side by side. Hidden states, scratch and
 * logits are float32. Everything is summed in an order that depends on the row alone (see ops.h and linear.h).
 */
#ifndef SERVING_FORWARD_H
#define SERVING_FORWARD_H

#include "linear.h"
#include "ops.h"

enum { SK_QKV = 0, SK_O = 1, SK_GATE_UP = 2, SK_DOWN = 3, SK_SITES = 4 };

typedef struct {
    sk_linear linear[SK_SITES];
    const float *input_norm, *post_norm;   /* [hidden] */
    const float *qkv_bias;                 /* [q + 2 kv], or NULL */
    const float *q_norm, *k_norm;          /* [head_dim], or NULL */
    const float *attended_norm, *fed_norm; /* [hidden], of what attention and the MLP give before it is added, or NULL */
    const float *rope;                     /* [max_positions, 2, rotated / 2]: cosines, sines; NULL: none */
    int64_t window;                        /* keys that a query sees, its own included; 0: all up to its own */
    const lk_site *lora[SK_SITES];
} sk_layer;

/* What one adapter changes beside its share of the linears; lora_kernels.extras.Extras. All float32. */
typedef struct {
    const float *const *scales, *const *biases;     /* [layers * SK_SITES], each [n] of its site, or NULL */
    int64_t embed_rank, head_rank;                  /* 0: none */
    const float *embed_down, *embed_up;             /* [vocab, rank], [rank, hidden] */
    const float *head_down, *head_up, *head_scale;  /* [rank, hidden], [rank, vocab]; [vocab] or NULL */
    int64_t embed_tokens, head_tokens;              /* rows that replace the base's */
    const int32_t *embed_ids, *head_ids;
    const float *embed_rows, *head_rows;            /* [tokens, hidden] */
} sk_extras;

typedef struct {
    int64_t hidden, heads, kv_heads, head_dim, intermediate, vocab, layers, max_rows, max_positions;
    int64_t rotated;                       /* dimensions of a head, from the first one on */
    int64_t gelu;                          /* the gate's activation is GELU's tanh form, not SiLU */
    float eps, embed_scale, score_scale;
    float score_cap, logit_cap;            /* c of c * tanh(x / c); 0: none */
    const void *embed;                     /* [vocab, hidden] of embed_dtype; NULL: the head's own rows */
    int64_t embed_dtype;
    const float *norm;                     /* [hidden] */
    sk_linear head;
    const sk_layer *layer;
    void *lora_scratch;                    /* the most of lk_scratch_bytes of max_rows rows over all sites */
    void *kv;                              /* [num_blocks, layers, kv_heads, sk_head_elements] */
    int64_t kv_dtype, num_blocks, block_size;
    /* For max_rows rows; normed, attended and activated with SK_ROW_SLACK floats more each; gate_up is no narrower than
     * the hidden states: it holds what is normed before it is added. */
    float *residual, *normed, *qkv, *attended, *gate_up, *activated;
    void *scratch;                         /* sk_scratch_bytes, aligned to 64 */
} sk_model;

/* The parts of a step that are timed on thread 0; SK_WAIT is its wait at barriers. */
enum { SK_ROWS = 0, SK_PRODUCTS = 1, SK_ADAPTERS = 2, SK_ATTENTION = 3, SK_HEAD = 4, SK_WAIT = 5, SK_PARTS = 6 };

typedef struct {
    int64_t since;         /* the clock when the last part ended */
    int64_t ns[SK_PARTS];
} sk_times;

typedef struct {
    int64_t rows, chunks;
    const int32_t *token_ids;              /* [rows] */
    const int32_t *chunk_rows;             /* first row of each chunk, and rows at the end */
    const int32_t *chunk_starts;           /* position of a chunk's first token */
    const int32_t *chunk_tables;           /* where its sequence's block ids begin in `blocks` */
    const int32_t *blocks;
    int64_t samples, embeds;
    const int32_t *sample_rows;            /* [samples + embeds]: rows whose final hidden state is wanted */
    const lk_batch *lora;                  /* NULL when no row has an adapter */
    const lk_batch *wanted_lora;               /* the same of the rows in sample_rows, in their order; only if `trims` */
    const sk_extras *const *extras;        /* [rows], NULL for rows without; NULL when no row has any */
    const sk_extras *const *wanted_extras; /* the same of sample_rows, in their order */
    int64_t trims;                         /* the last layer's hidden states are computed for sample_rows alone */
    float *final;                          /* [samples + embeds, hidden]: after the final norm */
    float *logits;                         /* [samples, vocab] */
    int32_t *best;                         /* [samples]: argmax, -1 when the row is not finite */
    int64_t threads;
    sk_times *times;                       /* added to, or NULL */
} sk_step;

/* Bytes of scratch for steps of this model on up to `threads` threads. */
int64_t sk_scratch_bytes(const sk_model *model, int64_t threads);

/* Compute a step. 0; -1: a token, position, row or block outside the model's, and nothing was written. */
int sk_forward(const sk_model *model, const sk_step *step);

/* Use one instruction set for everything between the products: as sk_linear_use. */
int sk_forward_use(const char *name);

#endif
