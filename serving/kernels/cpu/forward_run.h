/* One step under way: what the parts of the forward pass share. */
#ifndef SERVING_FORWARD_RUN_H
#define SERVING_FORWARD_RUN_H

#include "forward.h"

/* Query positions of one chunk and some of its KV heads, attended by one thread. */
typedef struct {
    int32_t chunk, first, count;  /* first: within the chunk */
    int32_t out;                  /* the first one's row of `attended` */
    int32_t kv_head, kv_heads;
} sk_task;

/* The place of a row's keys and values. */
typedef struct {
    int32_t position, block;
} sk_spot;

/* Some rows of a step: all of them or, in the last layer, those that are wanted. */
typedef struct {
    const sk_ops *ops;
    const sk_model *model;
    const sk_step *step;
    sk_team *team;
    int64_t rows;
    const lk_batch *lora;  /* of these rows */
    const sk_extras *const *extras;  /* likewise, or NULL */
    float *residual;       /* [rows, hidden] */
    sk_spot *places;       /* [the step's rows] */
    sk_task *tasks;
    int64_t task_count;
    char *linear_scratch;
    /* The x of products, in the type that suits them. */
    sk_rows normed, attended, activated;
    float *attend_scratch;
    int64_t attend_floats;  /* of one thread */
} sk_run;

static inline void *sk_row_of(const sk_rows *rows, int64_t row) {
    return (char *)rows->data + row * rows->stride * lk_element_size(rows->dtype);
}

static inline int64_t sk_aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Bytes of places, both lists of tasks and attend_scratch, in steps of this model on up to `threads` threads. */
int64_t sk_attention_bytes(const sk_model *model, int64_t threads);

/* Lays them out in `memory` and lists the step's work, before its threads start; `wanted`, a copy of `run` or it
 * itself, gets the tasks of sample_rows alone. */
void sk_list_attention(sk_run *run, sk_run *wanted, char *memory);

/* Bias, norm and rotation of one row's queries and keys; keys and values go to the cache. */
void sk_place_row(const sk_run *run, int64_t layer, int64_t row);

/* Attention of the whole step, by every thread of the team; complete after a barrier. `thread`: the caller's number. */
void sk_attend_rows(const sk_run *run, int64_t layer, int64_t thread);

/* y (+)= x W^T. */
typedef struct {
    int site;
    const sk_rows *x;
    float *y;
    int accumulate;
} sk_product;

/* The product and the adapters' share of it, by every thread of the team; complete on return. */
void sk_project(const sk_run *run, int64_t layer, const sk_product *product);

/* Before the threads of a step start: what is done from now on is timed. */
void sk_start_clock(const sk_run *run);

/* Until every thread has done this part of the step, whose time it took. */
void sk_finish(const sk_run *run, int part);

#endif
