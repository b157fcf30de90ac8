/* Weights of SK_GROUPED, brought to the bfloat16 panels that the tiles read.
 *
 * A unit is 8 k of 16 columns. In 4 bits it is 16 words of 32: half h (columns 0 to 7, 8 to 15) of pair p lies at bit
 * 4 * (2 p + h), in word i column 8 h + i / 2 and k 2 p + i % 2, so that one shift brings 16 weights into place as they
 * are needed. In 8 bits it lies as bfloat16 does: for each pair [16 columns][2]. */
#ifndef SERVING_KERNELS_UNPACK_H
#define SERVING_KERNELS_UNPACK_H

#include "linear_kernels.h"

enum { SK_UNIT_PAIRS = SK_UNIT / 2, SK_UNIT_VALUES = SK_UNIT * SK_PANEL, SK_HALF = SK_PANEL / 2 };

/* out[length / 2][16 columns][2] = k in [k, k + length) of a panel, whole units. As many bytes as are read are fetched
 * from `ahead` meanwhile; any address will do. */
typedef void sk_unpack(const sk_groups *groups, const char *panel, int64_t k, int64_t length, uint16_t *out,
                       const char *ahead);

/* A tile of at most SK_FUSED_ROWS rows and the whole k, its weights unpacked in registers: the sums of the bfloat16 tile,
 * bit for bit. t->w, t->panel_bytes: as packed; t->ahead: `step` bytes ahead of use are fetched, and behind the end of
 * the panel what lies at `at`. */
enum { SK_FUSED_ROWS = 4 };
typedef void sk_fused(const sk_groups *groups, const sk_tile *tile);

sk_unpack sk_portable_unpack;
#if defined(__x86_64__)
sk_unpack sk_avx2_unpack, sk_avx512_unpack;
sk_fused sk_avx512_fused;
#endif

/* out[k] = one column of a panel, rounded to bfloat16. */
void sk_unpack_column(const sk_groups *groups, const char *panel, int64_t k, int64_t column, float *out);

/* Return whether `candidate` gives the bits of the portable one for every kind of code, offset and scale. */
int sk_unpack_agrees(sk_unpack *candidate);

/* Return whether `candidate` gives the bits of the bfloat16 tiles of `kernels` and of portable unpacking. */
int sk_fused_agrees(sk_fused *candidate, const sk_kernels *kernels);

/* Bytes of one panel. */
int64_t sk_grouped_panel_bytes(int64_t k, const sk_groups *groups);

/* Bytes of a unit's codes. */
static inline int64_t sk_unit_bytes(const sk_groups *g) { return g->codes == SK_U4 ? SK_UNIT_VALUES / 2 : SK_UNIT_VALUES; }

/* Bytes of the 16 scales of a group, which its offsets follow. */
static inline int64_t sk_scale_bytes(const sk_groups *g) { return g->type == SK_F32 ? 4 * SK_PANEL : 2 * SK_PANEL; }

/* Bytes of a group before its codes. */
static inline int64_t sk_group_head(const sk_groups *g) {
    return sk_scale_bytes(g) * (g->offset == SK_SCALE_ALONE ? 1 : 2);
}

/* Bytes from one whole group to the next. */
static inline int64_t sk_group_bytes(const sk_groups *g) {
    return sk_group_head(g) + g->size / SK_UNIT * sk_unit_bytes(g);
}

#endif
