/* Packing of weights into the panels that linear.h describes. Runs once a weight, at load. */
#ifndef SERVING_KERNELS_PACK_H
#define SERVING_KERNELS_PACK_H

#include "linear.h"

/* Bytes of a packed [n, k] weight of one type. */
int64_t sk_packed_bytes(int64_t n, int64_t k, int64_t dtype);

/* Pack the row-major source [n, k], rows `stride` elements apart, of type SK_F32 or SK_BF16, into `packed`; columns
 * that fill up the last panel are zero. SK_INT8: symmetric, one scale per output column, written to scales[n rounded up
 * to 16]. float32 becomes bfloat16 by rounding to nearest even. Scratch: threads * 16 * k floats. */
void sk_pack(const void *source, int64_t source_dtype, int64_t stride, int64_t n, int64_t k, int64_t dtype,
             void *packed, float *scales, float *scratch, int threads);

/* Pack codes [n, k] into `packed`, n panels of sk_grouped_panel_bytes: for SK_U4 two to a byte, the even k in its low
 * half, `stride` bytes apart. scales, offsets: [n, groups] of groups->type; offsets NULL for SK_SCALE_ALONE. Columns
 * that fill up the last panel are zero. */
void sk_pack_groups(const void *codes, int64_t stride, const void *scales, const void *offsets, int64_t n, int64_t k,
                    const sk_groups *groups, void *packed, int threads);

/* One row of W [n, k] as it was packed, as k floats: of SK_GROUPED those that products compute with. Not for
 * SK_INT8. */
void sk_unpack_row(const sk_linear *w, int64_t row, float *out);

/* out[row] = the sum of squares of a row of W [n, k], of any type. values: room for k floats */
void sk_row_squares(const sk_linear *w, float *values, float *out);

#endif
