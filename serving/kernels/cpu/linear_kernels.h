/* A kernel set for linear.c: the arithmetic of one tile for one instruction set and type of weight. */
#ifndef SERVING_KERNELS_LINEAR_KERNELS_H
#define SERVING_KERNELS_LINEAR_KERNELS_H

#include <stdint.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "linear.h"

/* Most rows of a tile of any kernel set, and of a tile that waits for its weights. */
enum { SK_TILE_ROWS = 12, SK_FEW_ROWS = 8 };

/* A row of x beside SK_INT8 weights: integers, one scale a block of k, zeros up to the end of the last block.
 *
 * Weights w are stored as w + 128, in 1 to 255, because the instructions multiply unsigned with signed bytes. What that
 * adds to a row's sums is the same in every column: `offset` takes it away again. It is NaN where x is not finite.
 *
 * The groups 0, 1, 4, 5 and 2, 3, 6, 7 of each 8 values are multiplied into one 16-bit sum each. It cannot overflow:
 * neither the positive nor the negative values of a group add up to more than SK_GROUP_LIMIT, 2 more when rounded, and
 * (126 + 2) * 255 < 2^15. Blocks of 32 lose a quarter more of the model's quality, those of 16 cost a tenth of the
 * time. */
typedef struct {
    int8_t values[SK_BLOCK];
    float scale;
} sk_block;

typedef struct {
    float offset;
    sk_block blocks[];
} sk_row;

enum { SK_GROUP_LIMIT = 126, SK_WEIGHT_OFFSET = 128 };

/* The largest sum or size of values as they are scaled by it: so large that its inverse is finite. */
static inline float sk_block_most(float most) { return most > 1e-36f ? most : 1e-36f; }

/* The same row for AVX-512, where a scale for each 16 costs a fifth of the speed and nothing can overflow: the offset;
 * for each SK_WIDE of k, or what is left, one of these for each SK_BLOCK, and a float scale.
 *
 * x = values * 2^shift * scale. The block's largest value is 127 * 2^SK_MOST_SHIFT; the smaller the largest of another
 * 16, the less they are shifted and the finer they are rounded. SmolLM2-135M loses 0.0083 nats a token, with sk_row
 * 0.0086; with nothing but a scale for each 16, 32, 64 values 0.0077, 0.0097, 0.0130. */
typedef struct {
    int8_t values[SK_BLOCK];
    int32_t shift;
} sk_shifted;

enum { SK_WIDE = 128, SK_MOST_SHIFT = 7 };

#define SK_SHIFTED_UNIT (1.0f / (127 << SK_MOST_SHIFT))

/* Memory to fetch meanwhile: in each turn of k (sk_turn) as many adjacent bytes as a panel's weights have in a turn,
 * for each panel of the tile. Any address will do. */
typedef struct {
    const char *at;
    int64_t step;        /* from turn to turn */
    int64_t panel_step;  /* from panel to panel */
    int64_t turns;
} sk_ahead;

/* y[rows, 16 * panels] = or += x[rows, k] W^T. */
typedef struct {
    const char *w;         /* first panel, at the first k of the tile */
    int64_t panel_bytes;   /* from one panel to the next */
    const float *scales;   /* of the first panel's columns; SK_INT8 */
    int64_t panels, k;     /* k may be part of the weight's k; SK_INT8: it is all of sk_padded */
    const char *x;         /* float32 rows, or rows as `prepare` left them */
    int64_t x_stride;      /* bytes */
    int64_t rows;
    float *y;
    int64_t ldy;
    int from_y;            /* sums start from y */
    const sk_ahead *ahead; /* one after the other: k / sk_turn turns in all */
} sk_tile;

typedef struct sk_kernels {
    const char *name;
    int64_t rows;             /* of a tile, at most */
    int64_t panels[4];        /* of a tile of 1, 2, 3, few rows, at most: a power of two; any smaller one will do too */
    int64_t side;             /* the same of more rows, which are more work than weights are to read */
    int64_t x_bytes;          /* of SK_BLOCK elements of x as the tiles read them, at most */
    int64_t x_dtype;          /* of x as it may lie: `prepare` does no more than round it to this type, if to any */
    /* out = x[0..k) in the form of the tiles; NULL: float32 rows are read where they lie. */
    void (*prepare)(const float *x, int64_t k, void *out);
    void (*tile)(const sk_tile *tile);
    const struct sk_kernels *truth;  /* portable kernels that it must agree with; NULL: sk_portable's */
} sk_kernels;

/* By type of weight. */
extern const sk_kernels sk_portable[SK_DTYPES];
extern const sk_kernels sk_portable_shifted;
#if defined(__x86_64__)
extern const sk_kernels sk_avx2[SK_DTYPES];
extern const sk_kernels sk_avx512[SK_DTYPES];
void sk_avx2_quantise_row(const float *x, int64_t k, void *out);
void sk_avx2_tile_int8(const sk_tile *tile);
void sk_avx512_quantise_row(const float *x, int64_t k, void *out);
void sk_avx512_tile_int8(const sk_tile *tile);
#endif

/* Return whether `candidate` agrees with the portable kernels on small problems of this weight type. */
int sk_linear_agrees(const sk_kernels *candidate, int64_t dtype);

/* k of a turn. */
static inline int64_t sk_turn(int64_t dtype) { return dtype == SK_INT8 ? SK_BLOCK : 8; }

static inline int64_t sk_turn_bytes(int64_t dtype) { return sk_turn(dtype) * SK_PANEL * lk_element_size(dtype); }

static inline int64_t sk_panels(int64_t n) { return (n + SK_PANEL - 1) / SK_PANEL; }

/* k as it is packed. */
static inline int64_t sk_padded(int64_t k, int64_t dtype) {
    return dtype == SK_INT8 ? (k + SK_BLOCK - 1) / SK_BLOCK * SK_BLOCK : k;
}

static inline int64_t sk_panel_bytes(int64_t k, int64_t dtype) {
    return sk_padded(k, dtype) * SK_PANEL * lk_element_size(dtype);
}

static inline int64_t sk_tile_panels(const sk_kernels *kernels, int64_t rows) {
    return rows > SK_FEW_ROWS ? kernels->side : kernels->panels[rows < 4 ? rows - 1 : 3];
}

static inline int sk_thread(void) {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

static inline int sk_threads(void) {
#if defined(_OPENMP)
    return omp_get_num_threads();
#else
    return 1;
#endif
}

#endif
