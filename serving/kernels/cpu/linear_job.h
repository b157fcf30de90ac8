/* One product under way: what linear.c asks of linear_parts.c. */
#ifndef SERVING_KERNELS_LINEAR_JOB_H
#define SERVING_KERNELS_LINEAR_JOB_H

#include "linear_kernels.h"
#include "unpack.h"

typedef struct {
    const sk_kernels *kernels;
    const sk_linear *w;
    int64_t rows;
    struct {
        const char *data;
        int64_t stride; /* bytes */
    } x;                /* as the kernels want it */
    float *y;
    int64_t ldy;
    int accumulate;
    int64_t k;                        /* as packed */
    sk_fused *fused;                  /* for few rows of such weights, or NULL */
    sk_unpack *unpack;                /* of weights that the tiles read as bfloat16; NULL: they are read as they lie */
    int64_t turn_bytes, panel_bytes;  /* of one panel as it lies; unpacked: about so many a turn, to be fetched */
    int64_t turn;                     /* k of a turn of the tiles */
    sk_beside beside;
    int thread; /* the caller's number in the team */
} sk_job;

/* Every thread of the team, with the same job but for its own `beside`; see sk_linear_team. */
void sk_job_run(const sk_job *job, sk_team *team);

/* The number of rows up to which weights come no faster than they are used, so nothing else is fetched meanwhile. Bound
 * by memory, steps of 16 rows with as many adapters (Zen 5, 1,000 GFLOP/s and 42 GB/s) took 16.3 ms with adapters
 * fetched beside the products and 14.4 without. Bound by products (Zen 4, 420 GFLOP/s) those of 16, 20 and 24 rows took
 * 20.6, 24.3 and 29.9 ms with and 22.3, 27.8 and 33.2 without. Takes 0.2 ms. */
int64_t sk_linear_bound_rows(const sk_kernels *kernels, int64_t dtype);

#endif
