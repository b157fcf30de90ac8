/* Plain C: the truth that the other kernels are checked against, and what runs where they do not. */
#include <math.h>
#include <string.h>

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

/* Of 8 values, those of one group, 4 from `first` on, that have this sign. Each sum in the order of the AVX2 kernel. */
static float sum_group(const float *x, int first, float sign) {
    float part[4] = {sign * x[first], sign * x[first + 4], sign * x[first + 1], sign * x[first + 5]};
    for (int i = 0; i < 4; i++) part[i] = part[i] > 0 ? part[i] : 0;
    return (part[0] + part[1]) + (part[2] + part[3]);
}

static float largest_sum(const float *x) {
    float most = 0;
    for (int at = 0; at < SK_BLOCK; at += 8)
        for (int first = 0; first < 4; first += 2)
            for (int sign = -1; sign <= 1; sign += 2) {
                float sum = sum_group(x + at, first, (float)sign);
                most = sum > most ? sum : most;
            }
    return most;
}

static void quantise_row(const float *x, int64_t k, void *out) {
    sk_row *row = out;
    row->offset = 0;
    for (int64_t at = 0; at < k; at += SK_BLOCK) {
        sk_block *block = row->blocks + at / SK_BLOCK;
        float values[SK_BLOCK] = {0};
        memcpy(values, x + at, (size_t)(k - at < SK_BLOCK ? k - at : SK_BLOCK) * sizeof *x);
        float most = sk_block_most(largest_sum(values)), factor = SK_GROUP_LIMIT / most;
        int total = 0;
        block->scale = most * (1.0f / SK_GROUP_LIMIT);
        for (int i = 0; i < SK_BLOCK; i++) {
            block->values[i] = isfinite(values[i]) ? (int8_t)lrintf(values[i] * factor) : 0;
            total += block->values[i];
            row->offset += values[i] * 0;
        }
        row->offset -= (float)(SK_WEIGHT_OFFSET * total) * block->scale;
    }
}

static void tile_int8(const sk_tile *t) {
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t p = 0; p < t->panels; p++) {
            const uint8_t *w = (const uint8_t *)(t->w + p * t->panel_bytes);
            const sk_row *x = (const sk_row *)(t->x + row * t->x_stride);
            for (int64_t c = 0; c < SK_PANEL; c++) {
                float *y = t->y + row * t->ldy + p * SK_PANEL + c, sum = x->offset;
                for (int64_t at = 0; at < t->k; at += SK_BLOCK) {
                    const sk_block *block = x->blocks + at / SK_BLOCK;
                    int32_t dot = 0;
                    for (int64_t i = 0; i < SK_BLOCK; i++)
                        dot += block->values[i] * w[((at + i) / 4 * SK_PANEL + c) * 4 + i % 4];
                    sum += (float)dot * block->scale;
                }
                float value = sum * t->scales[p * SK_PANEL + c];
                *y = t->from_y ? *y + value : value;
            }
        }
}

const sk_kernels sk_portable[SK_DTYPES] = {
    {"portable", 8, {1, 1, 1, 1}, 64, 0, tile_f32},
    {"portable", 8, {1, 1, 1, 1}, 64, 0, tile_bf16},
    {"portable", 8, {1, 1, 1, 1}, sizeof(sk_block), quantise_row, tile_int8},
};
