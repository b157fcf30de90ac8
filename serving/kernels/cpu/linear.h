/* y = x W^T (+ y) for the weights of a model, on a CPU.
 *
 * W [n, k] is packed once, at load, into panels of 16 columns of y, the k values of a column in pairs, so that one
 * layout serves every instruction set: panel p holds, for each pair of k, [16 columns][2] values (float32: [2][16];
 * int8: for each quad of k, [16 columns][4] values plus 128, k filled up to whole blocks).
 * A panel is one stream of memory; a thread's panels lie side by side, and it reads the same ones at every call.
 *
 * Every value of y is one chain of fused multiply-adds in order of k (int8: of exact integer sums, one a block): its
 * bits do not depend on the other rows, on how many there are, nor on the number of threads.
 */
#ifndef SERVING_KERNELS_LINEAR_H
#define SERVING_KERNELS_LINEAR_H

#include <stdint.h>

#include "sgmv.h"
#include "team.h"

/* Types of weights. Activations are float32; with SK_INT8 each block of a row is rounded to 8-bit integers. Weights of
 * SK_GROUPED come from checkpoints in 4 or 8 bits, see sk_groups: they become bfloat16 a tile at a time, and their
 * products are those of SK_BF16, bit for bit. */
enum { SK_F32 = LK_F32, SK_BF16 = LK_BF16, SK_INT8 = LK_I8, SK_DTYPES = LK_DTYPES, SK_GROUPED = SK_DTYPES };

/* Columns of a panel: one AVX-512 register, two AVX registers. */
enum { SK_PANEL = 16 };

/* k of a block of 8-bit activations, which has a scale of its own (AVX-512: sk_shifted of linear_kernels.h). */
enum { SK_BLOCK = 16 };

/* Numbers of 4 bits, 0 to 15, or less 8 without an offset; integers of 8 bits, -128 to 127; floats of 8 bits. */
enum { SK_U4 = 0, SK_S8 = 1, SK_E4M3 = 2, SK_CODES = 3 };

/* What else makes a code a weight: code * scale, code * scale + minimum, (code - zero) * scale. */
enum { SK_SCALE_ALONE = 0, SK_MINIMUM = 1, SK_ZERO = 2, SK_OFFSETS = 3 };

/* Types of scales and offsets: SK_F32, SK_BF16 and this. */
enum { SK_F16 = 2, SK_SCALE_TYPES = 3 };

/* k of the smallest piece of SK_GROUPED weights. */
enum { SK_UNIT = 8 };

/* How a weight of SK_GROUPED lies: in each panel, for each group of k, 16 scales, 16 offsets if there are any, and the
 * codes, unit by unit (unpack.h). One rounding makes a float32 of a code, its scale and offset, and one more a
 * bfloat16. */
typedef struct {
    int64_t size;   /* k that share a scale, a multiple of SK_UNIT; the last group may have fewer units */
    int64_t codes;
    int64_t offset; /* SK_SCALE_ALONE and so on */
    int64_t type;   /* of scales and offsets */
} sk_groups;

/* A packed weight. The caller owns the memory: pack.h fills it. */
typedef struct {
    int64_t n, k;        /* k is even */
    int64_t dtype;
    const void *packed;  /* sk_packed_bytes, aligned to 64 bytes, best on huge pages */
    const float *scales; /* SK_INT8: n rounded up to a whole panel; otherwise NULL */
    sk_groups groups;    /* SK_GROUPED */
} sk_linear;

/* x of a product, `stride` elements from row to row: float32, or the type that the weight's products take as it lies
 * (sk_linear_takes). prepared: every row has been through sk_linear_prepare since the last product. */
typedef struct {
    const void *data;
    int64_t stride, dtype;
    int prepared;
} sk_rows;

/* Return SK_BF16 where products of weights of this type round x to bfloat16, so that x may be computed in it; else
 * SK_F32. */
int64_t sk_linear_takes(int64_t dtype);

/* Return the rows of x up to which reading a weight of this type takes longer than its products, as measured on this
 * processor when the kernels were chosen. */
int64_t sk_linear_bound(int64_t dtype);

/* Return whether products of such weights first bring float32 rows into a form of their own (SK_INT8: rounded to 8
 * bits). The thread that computes a row may do that while the row is in its caches, which saves a pass and a
 * barrier. */
int sk_linear_prepares(int64_t dtype);

/* Prepares one row, for the next product of this scratch. By any thread of the team. */
void sk_linear_prepare(const sk_linear *w, const float *x, int64_t row, void *scratch);

/* Elements from row to row that suit the products best: whole cache lines, an odd number of them, so that rows do not
 * share the sets of a cache. At most k + SK_ROW_SLACK. */
int64_t sk_linear_stride(int64_t k, int64_t x_dtype);
enum { SK_ROW_SLACK = 64 };

/* Memory that the calling thread reads right after the product: fetched into its caches while the product computes. */
typedef struct {
    const lk_strip *strips;
    int64_t count;
} sk_beside;

/* y[rows, n] = x[rows, k] W^T, or y += with `accumulate`. x, y and scratch may not overlap; rows of y are ldy floats
 * apart.
 *
 * Every thread of the team, one OpenMP parallel region, calls it with the same arguments but for its own `beside`; x
 * must be complete (a barrier before), and y and scratch may be touched again after a barrier that the caller puts
 * behind it. Scratch is shared by the team: sk_linear_scratch(...) bytes, aligned to 64. Allocates nothing. */
void sk_linear_team(const sk_linear *w, sk_rows x, int64_t rows, float *y, int64_t ldy, int accumulate,
                    sk_beside beside, void *scratch, sk_team *team);

/* Return whether products of so many rows leave the memory time to fetch something beside them. */
int sk_linear_fetches(const sk_linear *w, int64_t rows);

/* Bytes of scratch for up to `rows` rows of any weight type with this k; grows with each argument. */
int64_t sk_linear_scratch(int64_t k, int64_t rows, int64_t threads);

/* The same for `count` weights one after another and float32 rows of x, ldx apart, from outside a parallel region, with
 * a team of its own. */
void sk_linear_run(const sk_linear *const *w, int64_t count, const float *x, int64_t ldx, int64_t rows, float *y,
                   int64_t ldy, int accumulate, void *scratch, int threads);

/* Use the kernels of one instruction set ("portable", "avx2", "avx512"), each only after it agreed with the portable
 * ones on this processor. 0; -1 when the processor lacks it; -2 when it disagreed. Not 0: portable is in use. Not to be
 * called while a team runs. */
int sk_linear_use(const char *name);

#endif
