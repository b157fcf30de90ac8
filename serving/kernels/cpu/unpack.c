/* The truth about weights of SK_GROUPED, and the check of the other sets against it. */
#define UNPACK sk_portable_unpack
#define UNPACK_INLINE static inline
#define UNPACK_ATTRIBUTE
#include "unpack_template.h"

#include <string.h>

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
