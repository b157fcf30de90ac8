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
                    sum += float_row(t, row)[k] * lk_bf16_to_f32(w[(k / 2 * SK_PANEL + c) * 2 + k % 2]);
                *y = sum;
            }
        }
}

/* Sum the values of one group of 8, 4 from `first` on, that have this sign. Each sum in the order of the AVX2
 * kernel. */
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

/* The power of two in the quotient of two floats, no more than SK_MOST_SHIFT. */
static int power_of(float top, float most) {
    int power = ilogbf(top) - ilogbf(most);
    if (ldexpf(most, power) > top) power--;
    return power < SK_MOST_SHIFT ? power : SK_MOST_SHIFT;
}

/* Up to SK_WIDE of k; returns where the next block begins. */
static char *shift_block(const float *x, int64_t k, char *at, float *offset) {
    float most[SK_WIDE / SK_BLOCK] = {0}, top = sk_block_most(0);
    for (int64_t i = 0; i < k; i++) {
        float *turn = &most[i / SK_BLOCK];
        if (fabsf(x[i]) > *turn) *turn = fabsf(x[i]);
        if (*turn > top) top = *turn;
        *offset += x[i] * 0;
    }
    int total = 0;
    for (int64_t start = 0; start < k; start += SK_BLOCK, at += sizeof(sk_shifted)) {
        sk_shifted *out = (sk_shifted *)at;
        int power = isfinite(top) ? power_of(top, sk_block_most(most[start / SK_BLOCK])) : 0, sum = 0;
        float factor = ldexpf(127 / top, power);
        for (int64_t i = 0; i < SK_BLOCK; i++) {
            float value = start + i < k ? x[start + i] * factor : 0;
            out->values[i] = isfinite(value) ? (int8_t)lrintf(value) : 0;
            sum += out->values[i];
        }
        out->shift = SK_MOST_SHIFT - power;
        total += sum * (1 << out->shift);
    }
    float scale = top * SK_SHIFTED_UNIT;
    memcpy(at, &scale, sizeof scale);
    *offset -= (float)total * SK_WEIGHT_OFFSET * scale;
    return at + sizeof scale;
}

static void shift_row(const float *x, int64_t k, void *out) {
    float offset = 0;
    char *at = (char *)out + sizeof offset;
    for (int64_t start = 0; start < k; start += SK_WIDE)
        at = shift_block(x + start, k - start < SK_WIDE ? k - start : SK_WIDE, at, &offset);
    memcpy(out, &offset, sizeof offset);
}

/* One value of y, before its column's scale. */
static float multiply_shifted(const char *x, const uint8_t *w, int64_t c, int64_t k) {
    float sum, scale;
    int32_t dot = 0;
    memcpy(&sum, x, sizeof sum);
    x += sizeof sum;
    for (int64_t at = 0; at < k; at += SK_BLOCK) {
        const sk_shifted *turn = (const sk_shifted *)x;
        for (int64_t i = 0; i < SK_BLOCK; i++)
            dot += turn->values[i] * w[((at + i) / 4 * SK_PANEL + c) * 4 + i % 4] * (1 << turn->shift);
        x += sizeof *turn;
        if (at + SK_BLOCK < k && (at + SK_BLOCK) % SK_WIDE) continue;
        memcpy(&scale, x, sizeof scale);
        x += sizeof scale;
        sum += (float)dot * scale;
        dot = 0;
    }
    return sum;
}

static void tile_shifted(const sk_tile *t) {
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t column = 0; column < t->panels * SK_PANEL; column++) {
            const uint8_t *w = (const uint8_t *)(t->w + column / SK_PANEL * t->panel_bytes);
            float *y = t->y + row * t->ldy + column;
            float value = multiply_shifted(t->x + row * t->x_stride, w, column % SK_PANEL, t->k) * t->scales[column];
            *y = t->from_y ? *y + value : value;
        }
}

const sk_kernels sk_portable[SK_DTYPES] = {
    {"portable", 8, {1, 1, 1, 1}, 1, 64, SK_F32, 0, tile_f32, 0},
    {"portable", 8, {1, 1, 1, 1}, 1, 64, SK_F32, 0, tile_bf16, 0},
    {"portable", 8, {1, 1, 1, 1}, 1, sizeof(sk_block), SK_F32, quantise_row, tile_int8, 0},
};

/* Not for use: the truth about rows of sk_shifted. */
const sk_kernels sk_portable_shifted = {
    "portable", 8, {1, 1, 1, 1}, 1, sizeof(sk_shifted) + sizeof(float), SK_F32, shift_row, tile_shifted, 0,
};
