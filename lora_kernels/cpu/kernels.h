/* A kernel set for work.c: the arithmetic for one instruction set. */
#ifndef LORA_KERNELS_KERNELS_H
#define LORA_KERNELS_KERNELS_H

#include "sgmv.h"

enum {
    /* Rows that a kernel computes at once. */
    LK_SHRINK_GROUP = 3,
    LK_EXPAND_GROUP = 6,
    /* Rows of one adapter that share a pass over its A, at most: whole groups. Blocks of 512, 1024 or
     * 2048 of a K of 4096 were 18, 5 and 5 % slower than whole rows; 12, 24 or 48 rows within 3 % of each other. */
    LK_SHRINK_ROWS = 24,
    /* Rows that share a pass over B, at most: whole groups. */
    LK_EXPAND_ROWS = 192,
    /* Columns that expand computes at once, at most; of one row alone a block of b. */
    LK_COLUMNS = 32,
    /* Most columns of several rows of y one call of expand gets: whole blocks of b. */
    LK_CHUNK = 256,
};

/* At most LK_UNIT adjacent ranks of one page and slice. */
typedef struct {
    const void *a;      /* [padded_k / 32, 8, 32] */
    int64_t ranks;
    int64_t v_offset;   /* where their products go in a row of v */
    float scale;
    const float *rank_scales;  /* [8], on top of `scale` */
    const void *ahead;  /* what will probably be read next: worth fetching. Any address will do */
} lk_unit;

/* Columns [begin, end) of a slice, of all the pages of one adapter. */
typedef struct {
    const void *const *b;  /* [pages], each where the slice begins: [blocks, 8, 64] */
    const int32_t *ranks;  /* [pages] */
    int64_t pages, page_size;
    int64_t unit;          /* elements from 8 ranks of a page to the next 8 */
    int64_t begin, end;
} lk_columns;

/* Return the place of column c among 8 ranks of b, [blocks, 8, 64] or in pairs, in elements: the first rank's. */
static inline int64_t lk_b_place(int64_t c, int64_t dtype) {
    return c / LK_B_BLOCK * LK_B_BLOCK * LK_UNIT + c % LK_B_BLOCK * (dtype == LK_F32 ? 1 : 2);
}

/* Return how far rank r of 8 is from the first. */
static inline int64_t lk_b_rank(int64_t r, int64_t dtype) {
    return dtype == LK_F32 ? r * LK_B_BLOCK : r / 2 * 2 * LK_B_BLOCK + r % 2;
}

/* Return the place of column c among those of a in bfloat16. */
static inline int64_t lk_woven(int64_t c) { return c / 16 * 16 + c % 8 * 2 + c % 16 / 8; }

/* The arithmetic of one instruction set. */
typedef struct {
    const char *name;
    int rounds;  /* whether float32 activations, and v before it meets b, are rounded to bfloat16, like their weights */
    /* Activation type that shrink reads where it lies; -1: rows must be packed first. */
    int in_place;
    /* out = x[0..k) in the form shrink wants, zero up to padded_k; out has room for padded_k floats. */
    void (*pack_row)(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out);
    /* v[t][v_offset + r] = scale * rank_scales[r] * <x[t], a[r]> for r < ranks, and up to LK_UNIT. `wide` has room for
     * LK_UNIT * padded_k bfloat16 values. */
    void (*shrink)(const lk_unit *unit, int64_t dtype, int64_t padded_k, const void *const *x, int rows,
                   float *const *v, void *wide);
    /* y[t][c] += sum over pages j and ranks r of v[t][j * page_size + r] * b[j][r][c], in that order, for c in [begin,
     * end); y[t] is where the slice begins. panel has room for pages * page_size * LK_CHUNK floats; the range of more
     * than one row is within LK_CHUNK columns from a multiple of LK_COLUMNS on. */
    void (*expand)(const lk_columns *columns, int64_t dtype, const float *const *v, char *const *y, int64_t y_dtype,
                   int rows, float *panel);
} lk_kernels;

/* `pack_row` of the sets that compute with float32 activations. */
void lk_pack_f32(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out);

extern const lk_kernels lk_portable;
#if defined(__x86_64__)
extern const lk_kernels lk_avx2;
/* bfloat16 and 8-bit weights only. */
extern const lk_kernels lk_avx512bf16;
#endif

/* The kernel set in use for these types. */
const lk_kernels *lk_chosen(int64_t x_dtype, int64_t dtype);

/* Return whether `candidate` agrees with the portable kernels on a small problem of these types. */
int lk_agrees(const lk_kernels *candidate, int64_t x_dtype, int64_t dtype);

#endif
