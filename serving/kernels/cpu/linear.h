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

#include "team.h"

/* Types of weights. Activations are float32; with SK_INT8 each block of a row is rounded to 8-bit integers. */
enum { SK_F32 = 0, SK_BF16 = 1, SK_INT8 = 2, SK_DTYPES = 3 };

/* Columns of a panel: one AVX-512 register, two AVX registers. */
enum { SK_PANEL = 16 };

/* k of a block of 8-bit activations, which has a scale of its own (AVX-512: sk_shifted of linear_kernels.h). */
enum { SK_BLOCK = 16 };

/* A packed weight. The caller owns the memory: pack.h fills it. */
typedef struct {
    int64_t n, k;        /* k is even */
    int64_t dtype;
    const void *packed;  /* sk_packed_bytes, aligned to 64 bytes, best on huge pages */
    const float *scales; /* SK_INT8: n rounded up to a whole panel; otherwise NULL */
} sk_linear;

/* x of a product, `stride` elements from row to row: float32, or the type that the weight's products take as it lies
 * (sk_linear_takes). prepared: every row has been through sk_linear_prepare since the last product. */
typedef struct {
    const void *data;
    int64_t stride, dtype;
    int prepared;
} sk_rows;

/* SK_BF16 where products of weights of this type round x to bfloat16, so that whoever computes x may as well; else SK_F32.
 */
int64_t sk_linear_takes(int64_t dtype);

/* Whether products of such weights first bring float32 rows into a form of their own (SK_INT8: rounded to 8 bits). Whoever
 * computes a row may do that for them, while it is in its caches: a pass and a barrier less. */
int sk_linear_prepares(int64_t dtype);

/* Prepares one row, for the next product of this scratch. By any thread of the team. */
void sk_linear_prepare(const sk_linear *w, const float *x, int64_t row, void *scratch);

/* Elements from row to row that suit the products best: whole cache lines, an odd number of them, so that rows do not share
 * the sets of a cache. At most k + SK_ROW_SLACK. */
int64_t sk_linear_stride(int64_t k, int64_t x_dtype);
enum { SK_ROW_SLACK = 64 };

/* Some rows and columns of y. */
typedef struct {
    int64_t row, row_end, column, column_end;
} sk_part;

/* Adjacent memory. */
typedef struct {
    const char *data;
    int64_t bytes;
} sk_strip;

/* What a caller adds to y part by part, while a part is in the caches of the thread that computed it. All zero: nothing.
 */
typedef struct {
    /* y += what is due to this part, complete but for that. Row r, column c of y is y[r * ldy + c]; there may be no y but
     * for this part of it. */
    void (*add)(void *context, const sk_part *part, float *y, int64_t ldy);
    /* Memory to fetch into the caches while the part computes: how many strips, at most `most`. Asked for by products of
     * many rows only: they leave the memory idle (sk_linear_fetches). */
    int64_t (*list)(void *context, const sk_part *part, sk_strip *out, int64_t most);
    void *context;  /* the thread's own */
} sk_addend;

/* y[rows, n] = x[rows, k] W^T, or y += with `accumulate`, and the addend. x, y and scratch may not overlap; rows of y are
 * ldy floats apart.
 *
 * Every thread of the team, one OpenMP parallel region, calls it with the same arguments; x must be complete (a barrier
 * before), and y and scratch may be touched again after a barrier that the caller puts behind it. Scratch is shared by
 * the team: sk_linear_scratch(...) bytes, aligned to 64. Allocates nothing. */
void sk_linear_team(const sk_linear *w, sk_rows x, int64_t rows, float *y, int64_t ldy, int accumulate,
                    sk_addend addend, void *scratch, sk_team *team);

/* How the two halves of y's columns become one: for adjacent columns of a row, a multiple of SK_PANEL of them. */
typedef struct {
    void (*combine)(const float *first, const float *second, int64_t n, void *out, int64_t dtype);
    void *out;  /* [rows, n / 2] of `dtype`, float32 or bfloat16, rows `stride` elements apart */
    int64_t stride, dtype;
} sk_gate;

/* The same for a y that is wanted as gate(first half, second half) only: it never exists as a whole, and its parts stay in
 * a cache. Only where sk_linear_has_halves. */
void sk_linear_gate_team(const sk_linear *w, sk_rows x, int64_t rows, const sk_gate *gate, sk_addend addend,
                         void *scratch, sk_team *team);

/* Whether products of so many rows fetch what their addend lists. */
int sk_linear_fetches(const sk_linear *w, int64_t rows);

/* Whether both halves of the columns are whole panels. */
int sk_linear_has_halves(const sk_linear *w);

/* Bytes of scratch for up to `rows` rows of any weight type with this k; grows with each argument. */
int64_t sk_linear_scratch(int64_t k, int64_t rows, int64_t threads);

/* The same for `count` weights one after another and float32 rows of x, ldx apart, from outside a parallel region, with a
 * team of its own. */
void sk_linear_run(const sk_linear *const *w, int64_t count, const float *x, int64_t ldx, int64_t rows, float *y,
                   int64_t ldy, int accumulate, void *scratch, int threads);

/* Use the kernels of one instruction set ("portable", "avx2", "avx512"), each only after it agreed with the portable
 * ones on this processor. 0; -1 when the processor lacks it; -2 when it disagreed. Not 0: portable is in use. Not to be
 * called while a team runs. */
int sk_linear_use(const char *name);

#endif
