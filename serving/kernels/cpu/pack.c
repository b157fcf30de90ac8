#include "pack.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "linear_kernels.h"
#include "unpack.h"

int64_t sk_packed_bytes(int64_t n, int64_t k, int64_t dtype) { return sk_panels(n) * sk_panel_bytes(k, dtype); }

/* 16 rows of the source, each as k floats. */
static void read_rows(const void *source, int64_t source_dtype, int64_t stride, int64_t first, int64_t rows, int64_t k,
                      float *out) {
    for (int64_t r = 0; r < SK_PANEL; r++, out += k) {
        int64_t at = (first + r) * stride;
        if (r >= rows)
            for (int64_t i = 0; i < k; i++) out[i] = 0;
        else if (source_dtype == SK_BF16)
            for (int64_t i = 0; i < k; i++) out[i] = lk_bf16_to_f32(((const uint16_t *)source)[at + i]);
        else
            for (int64_t i = 0; i < k; i++) out[i] = ((const float *)source)[at + i];
    }
}

static float largest(const float *row, int64_t k) {
    float most = 0;
    for (int64_t i = 0; i < k; i++) most = fabsf(row[i]) > most ? fabsf(row[i]) : most;
    return most;
}

/* To nearest, ties to even, for sizes far below 2^22: the float's last bits are then the integer's. lrintf is a
 * call. */
static int8_t round_to_int8(float value) {
    union { float value; int32_t bits; } u = {value + 12582912.0f};
    return (int8_t)u.bits;
}

static void write_int8_panel(const float *rows, int64_t k, uint8_t *panel, float *scales) {
    float inverse[SK_PANEL];
    for (int r = 0; r < SK_PANEL; r++) {
        float most = largest(rows + r * k, k);
        scales[r] = most / 127;
        inverse[r] = most > 0 ? 127 / most : 0;
    }
    for (int64_t i = 0; i < sk_padded(k, SK_INT8); i++)
        for (int r = 0; r < SK_PANEL; r++)
            panel[(i / 4 * SK_PANEL + r) * 4 + i % 4] =
                (uint8_t)(SK_WEIGHT_OFFSET + (i < k ? round_to_int8(rows[r * k + i] * inverse[r]) : 0));
}

static void write_panel(const float *rows, int64_t k, int64_t dtype, void *panel) {
    for (int64_t i = 0; i < k; i++)
        for (int r = 0; r < SK_PANEL; r++) {
            float value = rows[r * k + i];
            int64_t pair = (i / 2 * SK_PANEL + r) * 2 + i % 2;
            if (dtype == SK_F32)
                ((float *)panel)[i * SK_PANEL + r] = value;
            else
                ((uint16_t *)panel)[pair] = lk_f32_to_bf16(value);
        }
}

/* bfloat16 to bfloat16: a panel is its rows' pairs, transposed. Most checkpoints are this, and a replica waits for
 * it. */
static void move_pairs(const uint16_t *source, int64_t stride, int64_t rows, int64_t k, uint32_t *panel) {
    for (int64_t i = 0; i < k / 2; i++)
        for (int64_t r = 0; r < rows; r++) memcpy(panel + i * SK_PANEL + r, source + r * stride + 2 * i, sizeof *panel);
    for (int64_t i = 0; rows < SK_PANEL && i < k / 2; i++)
        memset(panel + i * SK_PANEL + rows, 0, (size_t)(SK_PANEL - rows) * sizeof *panel);
}

void sk_pack(const void *source, int64_t source_dtype, int64_t stride, int64_t n, int64_t k, int64_t dtype,
             void *packed, float *scales, float *scratch, int threads) {
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t p = 0; p < sk_panels(n); p++) {
        float *rows = scratch + sk_thread() * SK_PANEL * k;
        int64_t first = p * SK_PANEL, count = n - first < SK_PANEL ? n - first : SK_PANEL;
        char *panel = (char *)packed + p * sk_panel_bytes(k, dtype);
        if (source_dtype == SK_BF16 && dtype == SK_BF16) {
            move_pairs((const uint16_t *)source + first * stride, stride, count, k, (uint32_t *)panel);
            continue;
        }
        read_rows(source, source_dtype, stride, first, count, k, rows);
        if (dtype == SK_INT8)
            write_int8_panel(rows, k, (uint8_t *)panel, scales + first);
        else
            write_panel(rows, k, dtype, panel);
    }
}

/* One column's unit of codes into its place; see unpack.h. */
static void place_codes(const uint8_t *codes, int64_t kind, int64_t column, uint8_t *unit) {
    int64_t half = column / SK_HALF, word = column % SK_HALF * 2;
    for (int64_t i = 0; i < SK_UNIT; i++) {
        int64_t pair = i / 2, odd = i % 2;
        if (kind != SK_U4) {
            unit[(pair * SK_PANEL + column) * 2 + odd] = codes[i];
            continue;
        }
        uint32_t value;
        memcpy(&value, unit + (word + odd) * 4, sizeof value);
        value |= (uint32_t)(codes[pair] >> 4 * odd & 15) << 4 * (2 * pair + half);
        memcpy(unit + (word + odd) * 4, &value, sizeof value);
    }
}

static void pack_grouped_column(const uint8_t *codes, const char *scales, const char *offsets, int64_t k,
                                const sk_groups *g, int64_t column, char *panel) {
    int64_t size = sk_scale_bytes(g) / SK_PANEL, unit_k = g->codes == SK_U4 ? SK_UNIT / 2 : SK_UNIT;
    for (int64_t at = 0; at < k; at += g->size, scales += size, panel += sk_group_bytes(g)) {
        memcpy(panel + column * size, scales, (size_t)size);
        if (offsets) memcpy(panel + sk_scale_bytes(g) + column * size, offsets, (size_t)size);
        if (offsets) offsets += size;
        char *unit = panel + sk_group_head(g);
        for (int64_t i = at; i < k && i < at + g->size; i += SK_UNIT, codes += unit_k, unit += sk_unit_bytes(g))
            place_codes(codes, g->codes, column, (uint8_t *)unit);
    }
}

void sk_pack_groups(const void *codes, int64_t stride, const void *scales, const void *offsets, int64_t n, int64_t k,
                    const sk_groups *g, void *packed, int threads) {
    (void)threads;
    const int64_t panel_bytes = sk_grouped_panel_bytes(k, g);
    const int64_t row = (k + g->size - 1) / g->size * (sk_scale_bytes(g) / SK_PANEL);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t p = 0; p < sk_panels(n); p++) {
        char *panel = (char *)packed + p * panel_bytes;
        memset(panel, 0, (size_t)panel_bytes);
        for (int64_t i = p * SK_PANEL; i < n && i < (p + 1) * SK_PANEL; i++)
            pack_grouped_column((const uint8_t *)codes + i * stride, (const char *)scales + i * row,
                                offsets ? (const char *)offsets + i * row : NULL, k, g, i % SK_PANEL, panel);
    }
}

void sk_unpack_row(const sk_linear *w, int64_t row, float *out) {
    if (w->dtype == SK_GROUPED) {
        const int64_t panel_bytes = sk_grouped_panel_bytes(w->k, &w->groups);
        sk_unpack_column(&w->groups, (const char *)w->packed + row / SK_PANEL * panel_bytes, w->k, row % SK_PANEL, out);
        return;
    }
    const char *panel = (const char *)w->packed + row / SK_PANEL * sk_panel_bytes(w->k, w->dtype);
    int64_t column = row % SK_PANEL;
    if (w->dtype == SK_F32) {
        for (int64_t i = 0; i < w->k; i++) out[i] = ((const float *)panel)[i * SK_PANEL + column];
        return;
    }
    for (int64_t i = 0; i < w->k; i++)
        out[i] = lk_bf16_to_f32(((const uint16_t *)panel)[(i / 2 * SK_PANEL + column) * 2 + i % 2]);
}

/* One weight of SK_INT8. */
static float int8_at(const sk_linear *w, const char *panel, int64_t row, int64_t i) {
    int value = ((const uint8_t *)panel)[(i / 4 * SK_PANEL + row % SK_PANEL) * 4 + i % 4];
    return (float)(value - SK_WEIGHT_OFFSET) * w->scales[row];
}

void sk_row_squares(const sk_linear *w, float *values, float *out) {
    for (int64_t row = 0; row < w->n; row++) {
        if (w->dtype == SK_INT8) {
            const char *panel = (const char *)w->packed + row / SK_PANEL * sk_panel_bytes(w->k, w->dtype);
            for (int64_t i = 0; i < w->k; i++) values[i] = int8_at(w, panel, row, i);
        } else {
            sk_unpack_row(w, row, values);
        }
        double sum = 0;
        for (int64_t i = 0; i < w->k; i++) sum += (double)values[i] * values[i];
        out[row] = (float)sum;
    }
}
