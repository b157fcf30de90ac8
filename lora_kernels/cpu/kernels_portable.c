/* Plain C kernels: correct everywhere, vectorised as far as the compiler does it. */
#include <string.h>

#include "kernels.h"

enum { LANES = 8, COLUMNS = 16 };

static inline float element(const void *data, int64_t dtype, int64_t i) {
    return dtype == LK_I8     ? (float)((const int8_t *)data)[i]
           : dtype == LK_BF16 ? lk_bf16_to_f32(((const uint16_t *)data)[i])
                              : ((const float *)data)[i];
}

void lk_pack_f32(const void *x, int64_t x_dtype, int64_t k, int64_t padded_k, int64_t dtype, void *out) {
    (void)dtype;
    float *row = out;
    if (x_dtype == LK_BF16)
        for (int64_t i = 0; i < k; i++) row[i] = lk_bf16_to_f32(((const uint16_t *)x)[i]);
    else
        memcpy(row, x, (size_t)k * sizeof(float));
    memset(row + k, 0, (size_t)(padded_k - k) * sizeof(float));
}

static float dot(const void *a, int64_t rank, int64_t dtype, const float *x, int64_t k) {
    float lanes[LANES] = {0};
    for (int64_t block = 0; block < k; block += LK_A_BLOCK) {
        int64_t at = block * LK_UNIT + rank * LK_A_BLOCK;
        for (int64_t i = 0; i < LK_A_BLOCK; i += LANES)
            if (dtype == LK_BF16)
                for (int j = 0; j < LANES; j++)
                    lanes[j] += element(a, LK_BF16, at + lk_woven(i + j)) * x[block + i + j];
            else if (dtype == LK_I8)
                for (int j = 0; j < LANES; j++) lanes[j] += element(a, LK_I8, at + i + j) * x[block + i + j];
            else
                for (int j = 0; j < LANES; j++) lanes[j] += element(a, LK_F32, at + i + j) * x[block + i + j];
    }
    float sum = 0;
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

static void shrink(const lk_unit *unit, int64_t dtype, int64_t padded_k, const void *const *x, int rows,
                   float *const *v, void *wide) {
    (void)wide;
    for (int64_t r = 0; r < unit->ranks; r++)
        for (int t = 0; t < rows; t++)
            v[t][unit->v_offset + r] = unit->scale * unit->rank_scales[r] * dot(unit->a, r, dtype, x[t], padded_k);
}

static void expand(const lk_columns *from, int64_t dtype, const float *const *v, char *const *y, int64_t y_dtype,
                   int rows, float *panel) {
    (void)panel;
    for (int64_t c = from->begin / COLUMNS * COLUMNS; c < from->end; c += COLUMNS) {
        int64_t first = c < from->begin ? from->begin - c : 0, end = from->end - c < COLUMNS ? from->end - c : COLUMNS;
        for (int t = 0; t < rows; t++) {
            float sum[COLUMNS] = {0};
            for (int64_t j = 0; j < from->pages; j++)
                for (int64_t r = 0; r < from->ranks[j]; r++) {
                    float factor = v[t][j * from->page_size + r];
                    int64_t at = r / LK_UNIT * from->unit + lk_b_rank(r % LK_UNIT, dtype) + lk_b_place(c, dtype);
                    if (dtype == LK_BF16)
                        for (int i = 0; i < COLUMNS; i++) sum[i] += factor * element(from->b[j], LK_BF16, at + 2 * i);
                    else if (dtype == LK_I8)
                        for (int i = 0; i < COLUMNS; i++) sum[i] += factor * element(from->b[j], LK_I8, at + 2 * i);
                    else
                        for (int i = 0; i < COLUMNS; i++) sum[i] += factor * element(from->b[j], LK_F32, at + i);
                }
            char *out = y[t] + c * lk_element_size(y_dtype);
            for (int64_t i = first; i < end; i++) {
                float total = element(out, y_dtype, i) + sum[i];
                if (y_dtype == LK_BF16)
                    ((uint16_t *)out)[i] = lk_f32_to_bf16(total);
                else
                    ((float *)out)[i] = total;
            }
        }
    }
}

const lk_kernels lk_portable = {"portable", 0, LK_F32, lk_pack_f32, shrink, expand};
