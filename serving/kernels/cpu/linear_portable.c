/* Plain C: the truth that the other kernels are checked against, and what runs where they do not. */
#include <math.h>

#include "linear_kernels.h"

static const float *float_row(const sk_tile *t, int64_t row) { return (const float *)(t->x + row * t->x_stride); }

static void tile_f32(const sk_tile *t) {
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t p = 0; p < t->panels; p++) {
            const float *w = (const float *)(t->w + p * t->panel_bytes);
            for (int64_t c = 0; c < SK_PANEL; c++) {
                float *y = t->y + row * t->ldy + p * SK_PANEL + c, sum = t->from_y ? *y : 0;
                for (int64_t k = 0; k < t->k; k++) sum += float_row(t, row)[k] * w[k * SK_PANEL + c];
                *y = sum;
            }
        }
}

static void tile_bf16(const sk_tile *t) {
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t p = 0; p < t->panels; p++) {
            const uint16_t *w = (const uint16_t *)(t->w + p * t->panel_bytes);
            for (int64_t c = 0; c < SK_PANEL; c++) {
                float *y = t->y + row * t->ldy + p * SK_PANEL + c, sum = t->from_y ? *y : 0;
                for (int64_t k = 0; k < t->k; k++)
                    sum += float_row(t, row)[k] * sk_bf16_to_f32(w[(k / 2 * SK_PANEL + c) * 2 + k % 2]);
                *y = sum;
            }
        }
}

/* Integers up to sk_integer_limit(k), one scale a row. A row that is not finite gets NaN as its scale. */
static void quantise_row(const float *x, int64_t k, void *out, float *scale) {
    float most = 0, finite = 0;
    for (int64_t i = 0; i < k; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        finite += x[i] * 0;
    }
    int32_t limit = sk_integer_limit(k);
    float factor = finite == 0 && most > 0 ? (float)limit / most : 0;
    *scale = finite == 0 ? most / (float)limit : NAN;
    for (int64_t i = 0; i < k; i++) ((int16_t *)out)[i] = factor != 0 ? (int16_t)lrintf(x[i] * factor) : 0;
}

static void tile_int8(const sk_tile *t) {
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t p = 0; p < t->panels; p++) {
            const int8_t *w = (const int8_t *)(t->w + p * t->panel_bytes);
            const int16_t *x = (const int16_t *)(t->x + row * t->x_stride);
            for (int64_t c = 0; c < SK_PANEL; c++) {
                float *y = t->y + row * t->ldy + p * SK_PANEL + c;
                int32_t sum = 0;
                for (int64_t k = 0; k < t->k; k++) sum += x[k] * w[(k / 2 * SK_PANEL + c) * 2 + k % 2];
                float value = (float)sum * (t->x_scales[row] * t->scales[p * SK_PANEL + c]);
                *y = t->from_y ? *y + value : value;
            }
        }
}

const sk_kernels sk_portable[SK_DTYPES] = {
    {"portable", 8, {1, 1, 1, 1}, 0, 0, tile_f32},
    {"portable", 8, {1, 1, 1, 1}, 0, 0, tile_bf16},
    {"portable", 8, {1, 1, 1, 1}, 2, quantise_row, tile_int8},
};
