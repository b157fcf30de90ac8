/* Segmented LoRA matmuls over pages of ranks, on a CPU.
 *
 * sgmv.c schedules tiles of rows over threads; a kernel set does the arithmetic for one instruction set. Every kernel
 * keeps one accumulator chain per output value, in an order that depends on the weights alone: a row gets the same bits
 * whatever rows it is batched with, however many threads run.
 */
#ifndef LORA_KERNELS_SGMV_H
#define LORA_KERNELS_SGMV_H

#include <stdint.h>

/* Element types: of activations the first two, of weights all. 8-bit weights are integers with a factor on each rank. */
enum { LK_F32 = 0, LK_BF16 = 1, LK_I8 = 2, LK_DTYPES = 3 };

enum {
    /* Rows that a kernel computes at once. */
    LK_SHRINK_GROUP = 3,
    LK_EXPAND_GROUP = 6,
    /* Rows of one adapter that share a pass over its A, at most: whole groups. Blocks of 512, 1024 or
     * 2048 of a K of 4096 were 18, 5 and 5 % slower than whole rows; 12, 24 or 48 rows within 3 % of each other. */
    LK_SHRINK_ROWS = 24,
    /* Rows that share a pass over B, at most: whole groups. */
    LK_EXPAND_ROWS = 192,
    /* Ranks that lie together, and that a shrink kernel computes at once and may round up to. */
    LK_UNIT = 8,
    /* Columns that lie together: of a, and of b. */
    LK_A_BLOCK = 32,
    LK_B_BLOCK = 64,
    /* Columns that expand computes at once, at most; of one row alone a block of b. */
    LK_COLUMNS = 32,
    /* Most columns of several rows of y one call of expand gets: whole blocks of b. */
    LK_CHUNK = 256,
};

/* A site of one layer. Arrays are those of AdapterPool; a and b may not alias anything written.
 *
 * Weights lie as one row of activations reads them, from the first byte to the last: 8 ranks of 32 or 64 columns, then the
 * same ranks of the next columns. What is past a page's ranks or a slice's columns is zero. Of 16 bfloat16 columns, c and
 * c + 8 lie side by side, so that one shift and one mask of 32-bit lanes make floats of them in order; others lie in
 * order. */
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

/* Where column c is among 8 ranks of b, [blocks, 8, 64] or in pairs, in elements: the first rank's. */
static inline int64_t lk_b_place(int64_t c, int64_t dtype) {
    return c / LK_B_BLOCK * LK_B_BLOCK * LK_UNIT + c % LK_B_BLOCK * (dtype == LK_F32 ? 1 : 2);
}

/* How far rank r of 8 is from the first. */
static inline int64_t lk_b_rank(int64_t r, int64_t dtype) {
    return dtype == LK_F32 ? r * LK_B_BLOCK : r / 2 * 2 * LK_B_BLOCK + r % 2;
}

/* Where column c is among those of a in bfloat16. */
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
    /* y[t][c] += sum over pages j and ranks r of v[t][j * page_size + r] * b[j][r][c], in that order, for c in
     * [begin, end); y[t] is where the slice begins. panel has room for pages * page_size * LK_CHUNK floats; the range of
     * more than one row is within LK_CHUNK columns from a multiple of LK_COLUMNS on. */
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

/* Some rows and columns of y. */
typedef struct {
    int64_t row, row_end, column, column_end;
} lk_part;

/* y += scale * (x A^T) B^T in two halves, for a caller with a team of threads of its own. All threads call the first with
 * the same arguments and their own number, when x is complete; a barrier of the caller's; then the second, either
 * all of them together when y is complete, or by parts: one call for each part of y, by any thread, as soon as the part is
 * there. The parts together are all of y. Nothing is allocated and nothing can fail; a value gets the same bits either
 * way. `scratch` (any alignment) carries the products in between: lk_scratch_bytes(site, rows, threads) bytes for `rows`
 * at least the batch's rows with an adapter, free for other use before and after. */
void lk_shrink_team(const lk_site *site, const lk_batch *batch, const void *x, int64_t x_stride, int64_t x_dtype,
                    void *scratch, int64_t thread, int64_t threads);
void lk_expand_team(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype,
                    void *scratch, int64_t thread, int64_t threads);
void lk_expand_part(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype,
                    void *scratch, int64_t thread, int64_t threads, const lk_part *part);
int64_t lk_scratch_bytes(const lk_site *site, int64_t rows, int threads);

/* Adjacent memory. */
typedef struct {
    const char *data;
    int64_t bytes;
} lk_strip;

/* The weights that this thread of a team will read in shrink, in expand, or that a part of y needs, in that order, so that
 * a caller may fetch them into the thread's caches before: how many strips, at most `most`; what does not fit is left out.
 */
int64_t lk_list_shrink(const lk_site *site, const lk_batch *batch, int64_t thread, int64_t threads, lk_strip *out,
                       int64_t most);
int64_t lk_list_expand(const lk_site *site, const lk_batch *batch, int64_t thread, int64_t threads, lk_strip *out,
                       int64_t most);
int64_t lk_list_part(const lk_site *site, const lk_batch *batch, const lk_part *part, lk_strip *out, int64_t most);

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

/* Whether `candidate` agrees with the portable kernels on a small problem of these types. */
int lk_agrees(const lk_kernels *candidate, int64_t x_dtype, int64_t dtype);

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
