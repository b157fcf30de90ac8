/* One step under way: what the parts of the forward pass share. */
#ifndef SERVING_FORWARD_RUN_H
#define SERVING_FORWARD_RUN_H

#include "forward.h"

/* Query positions of one chunk and some of its KV heads, attended by one thread. */
typedef struct {
    int32_t chunk, first, count;  /* first: within the chunk */
    int32_t kv_head, kv_heads;
} sk_task;

/* Where a row's keys and values go. */
typedef struct {
    int32_t position, block;
} sk_spot;

typedef struct {
    const sk_ops *ops;
    const sk_model *model;
    const sk_step *step;
    sk_team *team;
    sk_spot *places;   /* [rows] */
    sk_task *tasks;
    int64_t task_count;
    char *linear_scratch;
    /* What products take as x: of the type that suits them. */
    sk_rows normed, attended, activated;
    float *attend_scratch;
    int64_t attend_floats;  /* of one thread */
} sk_run;

static inline int64_t sk_aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Bytes of places, tasks and attend_scratch together, in steps of this model on up to `threads` threads. */
int64_t sk_attention_bytes(const sk_model *model, int64_t threads);

/* Lays places, tasks and attend_scratch out in `memory`, and lists the step's work: before its threads start. */
void sk_list_attention(sk_run *run, char *memory);

/* Bias, norm and rotation of one row's queries and keys; keys and values go to the cache. */
void sk_place_row(const sk_run *run, int64_t layer, int64_t row);

/* Attention of the whole step, by every thread of the team; complete after a barrier. `thread`: the caller's number. */
void sk_attend_rows(const sk_run *run, int64_t layer, int64_t thread);

#endif
