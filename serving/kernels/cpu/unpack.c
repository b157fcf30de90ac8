/* Plain C: the truth about weights of SK_GROUPED, and the check of the other sets against it. */
#include "unpack.h"

#include <string.h>

/* Scales or offsets of a group, each twice: as the words of a half want them. */
typedef struct {
    float values[2 * SK_PANEL];
} group_floats;

static inline float float_of(uint32_t bits) {
    union { uint32_t bits; float value; } u = {bits};
    return u.value;
}

/* Not infinity and not NaN. */
static inline float half_to_float(uint32_t half) {
    return float_of((half & 0x8000u) << 16 | (half & 0x7fffu) << 13) * 0x1p112f;
}

static inline float read_float(const char *at, const int64_t type, int64_t i) {
    if (type == SK_F32) return ((const float *)at)[i];
    const uint32_t bits = ((const uint16_t *)at)[i];
    return type == SK_BF16 ? float_of(bits << 16) : half_to_float(bits);
}

static inline group_floats read_floats(const char *at, const int64_t type) {
    group_floats out;
    for (int i = 0; i < 2 * SK_PANEL; i++) out.values[i] = read_float(at, type, i / 2);
    return out;
}

/* Word i of half h of pair p as a number. */
static inline float read_code(const char *unit, const int codes, const int offset, int p, int h, int i) {
    if (codes == SK_U4) {
        int value = (int)(((const uint32_t *)unit)[i] >> 4 * (2 * p + h) & 15);
        return (float)(offset == SK_SCALE_ALONE ? value - 8 : value);
    }
    int at = (2 * p + h) * SK_PANEL + i;
    if (codes == SK_S8) return (float)((const int8_t *)unit)[at];
    uint32_t code = ((const uint8_t *)unit)[at];
    return half_to_float((code & 0x80u) << 8 | (code & 0x7fu) << 7) * 256;
}

static inline float make_weight(float code, const int offset, float scale, float beside) {
    if (offset == SK_SCALE_ALONE) return code * scale;
    return offset == SK_MINIMUM ? code * scale + beside : (code - beside) * scale;
}

/* Nearest, ties to even; weights are finite. */
static inline uint16_t round_weight(float value) {
    union { float value; uint32_t bits; } u = {value};
    return (uint16_t)((u.bits + 0x7fffu + (u.bits >> 16 & 1)) >> 16);
}

static inline void unpack_units(const char *from, int64_t units, const int codes, const int offset,
                                const group_floats *scales, const group_floats *offsets, uint16_t *out,
                                const char *ahead) {
    (void)ahead;
    for (; units; units--, from += codes == SK_U4 ? SK_UNIT_VALUES / 2 : SK_UNIT_VALUES)
        for (int p = 0; p < SK_UNIT_PAIRS; p++)
            for (int h = 0; h < 2; h++, out += SK_PANEL)
                for (int i = 0; i < SK_PANEL; i++) {
                    const int column = h * SK_PANEL + i;
                    out[i] = round_weight(make_weight(read_code(from, codes, offset, p, h, i), offset,
                                                      scales->values[column], offsets->values[column]));
                }
}

#define UNPACK_ATTRIBUTE
#define UNPACK sk_portable_unpack
#include "unpack_groups.h"

int64_t sk_grouped_panel_bytes(int64_t k, const sk_groups *g) {
    return (k + g->size - 1) / g->size * sk_group_head(g) + k / SK_UNIT * sk_unit_bytes(g);
}

void sk_unpack_column(const sk_groups *g, const char *panel, int64_t k, int64_t column, float *out) {
    const int h = column >= SK_HALF, word = (int)(column % SK_HALF * 2);
    for (int64_t at = 0; at < k; at += g->size, panel += sk_group_bytes(g)) {
        const float scale = read_float(panel, g->type, column);
        const float offset = g->offset == SK_SCALE_ALONE ? 0 : read_float(panel + sk_scale_bytes(g), g->type, column);
        const char *unit = panel + sk_group_head(g);
        for (int64_t i = at; i < k && i < at + g->size; i += SK_UNIT, unit += sk_unit_bytes(g))
            for (int j = 0; j < SK_UNIT; j++) {
                float code = read_code(unit, (int)g->codes, (int)g->offset, j / 2, h, word + j % 2);
                *out++ = lk_bf16_to_f32(round_weight(make_weight(code, (int)g->offset, scale, offset)));
            }
    }
}

/* A whole group, one in two parts and a shorter one. */
enum { GROUP = 2 * SK_UNIT, LENGTH = 5 * SK_UNIT, FROM = SK_UNIT, MOST_BYTES = LENGTH * SK_PANEL + 3 * 8 * SK_PANEL };

/* Random codes; scales and offsets that are numbers in all types, and so short that every product with a code is
 * exact: a sum has then one rounding, whether the set has an instruction for both or not. Scales of checkpoints with
 * minima are as short. */
static void fill(const sk_groups *g, char *panel) {
    uint32_t state = 1;
    for (int64_t i = 0; i < MOST_BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        panel[i] = (char)(state >> 24);
        if (g->codes == SK_E4M3 && (panel[i] & 0x7f) == 0x7f) panel[i] = 0;
    }
    for (char *at = panel; at < panel + 3 * sk_group_bytes(g); at += sk_group_bytes(g))
        for (char *last = at + 1; last < at + sk_group_head(g); last += 2) {
            *last = (char)((*last & 0x80) | 0x38);
            if (g->type == SK_F32) last[-1] = 0;
        }
}

int sk_fused_agrees(sk_fused *candidate, const sk_kernels *kernels) {
    enum { K = LENGTH, STRIDE = 2 * K };
    _Alignas(64) char panel[MOST_BYTES + 64];
    _Alignas(64) uint16_t weights[K * SK_PANEL], x[SK_FUSED_ROWS * K];
    float expected[SK_FUSED_ROWS * SK_PANEL], actual[SK_FUSED_ROWS * SK_PANEL];
    for (int i = 0; i < SK_FUSED_ROWS * K; i++) x[i] = lk_f32_to_bf16((float)(i % 37 - 18) / 16);
    for (int64_t kind = 0; kind < SK_CODES * SK_OFFSETS * SK_SCALE_TYPES; kind++) {
        const sk_groups g = {GROUP, kind / SK_SCALE_TYPES / SK_OFFSETS, kind / SK_SCALE_TYPES % SK_OFFSETS,
                             kind % SK_SCALE_TYPES};
        if (g.codes == SK_E4M3 && g.offset != SK_SCALE_ALONE) continue;
        fill(&g, panel);
        sk_portable_unpack(&g, panel, 0, K, weights, panel);
        for (int64_t rows = 1; rows <= SK_FUSED_ROWS; rows++) {
            const sk_ahead plain[] = {{(char *)weights, 0, 0, K / SK_UNIT}}, own[] = {{panel, 0, 0, 0}};
            sk_tile t = {.w = (char *)weights, .panel_bytes = sizeof weights, .panels = 1, .k = K, .x = (char *)x,
                         .x_stride = STRIDE, .rows = rows, .y = expected, .ldy = SK_PANEL, .ahead = plain};
            kernels->tile(&t);
            t.w = panel, t.panel_bytes = sk_grouped_panel_bytes(K, &g), t.y = actual, t.ahead = own;
            candidate(&g, &t);
            if (memcmp(expected, actual, (size_t)rows * SK_PANEL * sizeof(float))) return 0;
        }
    }
    return 1;
}

int sk_unpack_agrees(sk_unpack *candidate) {
    _Alignas(64) char panel[MOST_BYTES + 64];
    _Alignas(64) uint16_t expected[LENGTH * SK_PANEL], actual[LENGTH * SK_PANEL];
    for (int64_t kind = 0; kind < SK_CODES * SK_OFFSETS * SK_SCALE_TYPES; kind++) {
        const sk_groups g = {GROUP, kind / SK_SCALE_TYPES / SK_OFFSETS, kind / SK_SCALE_TYPES % SK_OFFSETS,
                             kind % SK_SCALE_TYPES};
        if (g.codes == SK_E4M3 && g.offset != SK_SCALE_ALONE) continue;
        fill(&g, panel);
        memset(expected, 0, sizeof expected);
        memset(actual, 0, sizeof actual);
        sk_portable_unpack(&g, panel, FROM, LENGTH - FROM, expected, panel);
        candidate(&g, panel, FROM, LENGTH - FROM, actual, panel);
        if (memcmp(expected, actual, sizeof actual)) return 0;
    }
    return 1;
}
