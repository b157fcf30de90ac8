/* Segmented LoRA matmuls over pages of ranks, on a CPU.
 *
 * sgmv.c schedules tiles of rows over threads; a kernel set does the arithmetic for one instruction set. Every kernel
 * keeps one accumulator chain per output value, in an order that depends on the weights alone: a row gets the same bits
 * whatever rows it is batched with, however many threads run.
 */
#ifndef LORA_KERNELS_SGMV_H
#define LORA_KERNELS_SGMV_H

#include <stdint.h>

/* Element types: of activations the first two, of weights all. 8-bit weights are integers with a factor on each
 * rank. */
enum { LK_F32 = 0, LK_BF16 = 1, LK_I8 = 2, LK_DTYPES = 3 };

enum {
    /* Ranks that lie together, and that a shrink kernel computes at once and may round up to. */
    LK_UNIT = 8,
    /* Columns that lie together: of a, and of b. */
    LK_A_BLOCK = 32,
    LK_B_BLOCK = 64,
};

/* A site of one layer. Arrays are those of AdapterPool; a and b may not alias anything written.
 *
 * Weights lie as one row of activations reads them, from the first byte to the last: 8 ranks of 32 or 64 columns, then
 * the same ranks of the next columns. Values past a page's ranks or a slice's columns are zero. Columns c and c + 8 of
 * 16 bfloat16 columns lie side by side, so that one shift and one mask of 32-bit lanes make floats of them in order;
 * others lie in order. */
typedef struct {
    const void *a;              /* [pages, slices, page_size / 8, padded_k / 32, 8, 32], pages a_page elements apart */
    const void *b;              /* [pages, page_size / 8, padded_n / 64, 8, 64], pages b_page elements apart */
    const int32_t *page_table;  /* [slots, max_pages] */
    const int32_t *page_ranks;  /* [slots, max_pages] */
    const float *page_scales;   /* [slots, max_pages] */
    const int32_t *live;        /* [slots], pages of the slot that this site and layer use */
    const int64_t *offsets;     /* [slices + 1], columns of y */
    const int64_t *b_offsets;   /* [slices], where each begins in the columns of b: multiples of LK_B_BLOCK */
    const float *rank_scales;   /* [pages, slices, page_size], the factor on each rank of 8-bit weights; NULL: 1 */
    int64_t k, padded_k, n, padded_n, slices, page_size, max_pages, a_page, b_page;
    int64_t dtype;              /* of a and b */
} lk_site;

/* The rows of a batch, grouped by slot. */
typedef struct {
    const int32_t *row_order;       /* [rows with an adapter]; they rise within a segment */
    const int32_t *segment_starts;  /* [segments + 1], into row_order */
    const int32_t *segment_slots;   /* [segments] */
    int64_t segments;
} lk_batch;

/* Activations: rows `stride` elements apart, columns adjacent. */
typedef struct {
    char *data;
    int64_t stride;
    int64_t dtype;
} lk_rows;

/* Return whether this processor has the instructions of a kernel set: "portable", "avx2" or "avx512" (with bfloat16 and
 * VNNI). */
int lk_supports(const char *set);

/* y += scale * (x A^T) B^T in two halves, for a caller with a team of threads of its own. All threads call the first
 * with the same arguments and their own number, when x is complete; a barrier of the caller's, and y complete; then the
 * second; a barrier before y is read. Nothing is allocated and nothing can fail; rows without an adapter are not
 * touched, and a value gets the same bits in a team of any size. `scratch` (any alignment) carries the products in
 * between: lk_scratch_bytes(site, rows, threads) bytes for `rows` at least the batch's rows with an adapter, free for
 * other use before and after. */
void lk_shrink_team(const lk_site *site, const lk_batch *batch, const void *x, int64_t x_stride, int64_t x_dtype,
                    void *scratch, int64_t thread, int64_t threads);
void lk_expand_team(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype,
                    void *scratch, int64_t thread, int64_t threads);
int64_t lk_scratch_bytes(const lk_site *site, int64_t rows, int threads);

/* Adjacent memory. */
typedef struct {
    const char *data;
    int64_t bytes;
} lk_strip;

/* The weights that this thread of a team will read in shrink, or in expand, in that order, so that a caller may fetch
 * them into the thread's caches before: how many strips, at most `most`; what does not fit is left out. */
int64_t lk_list_shrink(const lk_site *site, const lk_batch *batch, int64_t thread, int64_t threads, lk_strip *out,
                       int64_t most);
int64_t lk_list_expand(const lk_site *site, const lk_batch *batch, int64_t thread, int64_t threads, lk_strip *out,
                       int64_t most);

/* Both halves, with at most `threads` threads of its own: 0, or -1 when memory is short and nothing was written. One
 * pointer, because every argument costs a caller through ctypes 0.15 us. */
typedef struct {
    const lk_site *site;
    const lk_batch *batch;
    lk_rows y, x;
    int64_t threads;
} lk_call;
int lk_apply(const lk_call *call);
/* v[s * slice_stride + row * row_stride + r] = scale * <x[row], a_s[r]>, for the ranks a row's adapter has. */
int lk_shrink(const lk_site *site, const lk_batch *batch, const void *x, int64_t x_stride, int64_t x_dtype, float *v,
              int64_t row_stride, int64_t slice_stride, int threads);
/* y += v B^T, v as lk_shrink leaves it. */
int lk_expand(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype, float *v,
              int64_t row_stride, int64_t slice_stride, int threads);

/* Shape and types of a matrix to be copied into [rows / 8, columns / block, 8, block], as a lies or, with `pairs`, as b
 * does; strides in elements. */
typedef struct {
    int64_t rows, columns, from_row, from_column, to_unit, block, from_dtype, to_dtype, pairs;
} lk_matrix;
/* to[i] = from[i] for `count` matrices that differ in their addresses alone; rounded to nearest even. */
void lk_copy(const lk_matrix *m, const void *const *from, void *const *to, int64_t count);

static inline float lk_bf16_to_f32(uint16_t value) {
    union { uint32_t bits; float value; } u = {(uint32_t)value << 16};
    return u.value;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t lk_f32_to_bf16(float value) {
    union { float value; uint32_t bits; } u = {value};
    if ((u.bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u.bits >> 16 | 0x40);
    return (uint16_t)((u.bits + 0x7fffu + (u.bits >> 16 & 1)) >> 16);
}

static inline int64_t lk_element_size(int64_t dtype) { return dtype == LK_I8 ? 1 : dtype == LK_BF16 ? 2 : 4; }

#endif
