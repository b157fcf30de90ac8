/* Shared by sgmv.c and work.c: one call's job, and the part of it that one thread does. */
#ifndef LORA_KERNELS_WORK_H
#define LORA_KERNELS_WORK_H

#include "kernels.h"

/* Rows of v: of the tile's row t, slice s begins at data + row(t) * row_stride + s * slice_stride. */
typedef struct {
    float *data;
    int64_t row_stride, slice_stride;
    int by_row_id;  /* row(t) is a row id (a caller's buffer), else a place in row_order */
} lk_v_rows;

typedef struct {
    const lk_kernels *kernels;
    const lk_site *site;
    const lk_batch *batch;
    lk_rows x, y;
    lk_v_rows v;
} lk_job;

/* One thread's own memory. */
typedef struct {
    const void **b;  /* [max_pages] */
    char *packed;    /* [LK_SHRINK_ROWS, padded_k] floats */
    float *panel;    /* [max_pages, page_size, LK_CHUNK] */
    void *wide;      /* [LK_UNIT, padded_k] in bfloat16: a unit of 8-bit ranks */
} lk_thread_scratch;

enum { LK_SHRINK, LK_EXPAND };

/* One thread's share of one phase. */
void lk_run_phase(const lk_job *j, int phase, const lk_thread_scratch *mine, int64_t thread, int64_t threads);
/* Rows times ranks of the batch, the reading of weights included: what each phase's cost is a multiple of. */
int64_t lk_batch_cost(const lk_job *j, int phase);

#endif
