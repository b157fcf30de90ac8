/* sk_unpack in C that compilers turn into vectors. UNPACK: the function's name, UNPACK_INLINE: how its parts are
 * declared. */
#include "unpack.h"

/* Scales or offsets of a group, each twice: as the words of a half want them. */
typedef struct {
    float values[2 * SK_PANEL];
} group_floats;

UNPACK_INLINE float float_of(uint32_t bits) {
    union { uint32_t bits; float value; } u = {bits};
    return u.value;
}

/* Not infinity and not NaN. */
UNPACK_INLINE float half_to_float(uint32_t half) {
    return float_of((half & 0x8000u) << 16 | (half & 0x7fffu) << 13) * 0x1p112f;
}

UNPACK_INLINE float read_float(const char *at, const int64_t type, int64_t i) {
    if (type == SK_F32) return ((const float *)at)[i];
    const uint32_t bits = ((const uint16_t *)at)[i];
    return type == SK_BF16 ? float_of(bits << 16) : half_to_float(bits);
}

UNPACK_INLINE group_floats read_floats(const char *at, const int64_t type) {
    group_floats out;
    for (int i = 0; i < 2 * SK_PANEL; i++) out.values[i] = read_float(at, type, i / 2);
    return out;
}

/* Word i of half h of pair p as a number. */
UNPACK_INLINE float read_code(const char *unit, const int codes, const int offset, int p, int h, int i) {
    if (codes == SK_U4) {
        int value = (int)(((const uint32_t *)unit)[i] >> 4 * (2 * p + h) & 15);
        return (float)(offset == SK_SCALE_ALONE ? value - 8 : value);
    }
    int at = (2 * p + h) * SK_PANEL + i;
    if (codes == SK_S8) return (float)((const int8_t *)unit)[at];
    uint32_t code = ((const uint8_t *)unit)[at];
    return half_to_float((code & 0x80u) << 8 | (code & 0x7fu) << 7) * 256;
}

UNPACK_INLINE float make_weight(float code, const int offset, float scale, float beside) {
    if (offset == SK_SCALE_ALONE) return code * scale;
    return offset == SK_MINIMUM ? code * scale + beside : (code - beside) * scale;
}

/* Nearest, ties to even; weights are finite. */
UNPACK_INLINE uint16_t round_weight(float value) {
    union { float value; uint32_t bits; } u = {value};
    return (uint16_t)((u.bits + 0x7fffu + (u.bits >> 16 & 1)) >> 16);
}

UNPACK_INLINE void unpack_units(const char *from, int64_t units, const int codes, const int offset,
                                const group_floats *scales, const group_floats *offsets, uint16_t *out,
                                const char *ahead) {
    const int64_t bytes = codes == SK_U4 ? SK_UNIT_VALUES / 2 : SK_UNIT_VALUES;
    for (; units; units--, from += bytes, ahead += bytes) {
        for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line);
        for (int p = 0; p < SK_UNIT_PAIRS; p++)
            for (int h = 0; h < 2; h++, out += SK_PANEL)
                for (int i = 0; i < SK_PANEL; i++) {
                    const int column = h * SK_PANEL + i;
                    out[i] = round_weight(make_weight(read_code(from, codes, offset, p, h, i), offset,
                                                      scales->values[column], offsets->values[column]));
                }
    }
}

#define UNPACK_CASE(codes, offset) \
    case codes * SK_OFFSETS + offset: unpack_units(from, units, codes, offset, &scales, &offsets, out, ahead); break;

UNPACK_ATTRIBUTE void UNPACK(const sk_groups *g, const char *panel, int64_t k, int64_t length, uint16_t *out,
                             const char *ahead) {
    const int64_t unit = sk_unit_bytes(g), end = k + length;
    for (int64_t upto; k < end; k = upto) {
        const char *group = panel + k / g->size * sk_group_bytes(g);
        const char *from = group + sk_group_head(g) + k % g->size / SK_UNIT * unit;
        upto = (k / g->size + 1) * g->size < end ? (k / g->size + 1) * g->size : end;
        const int64_t units = (upto - k) / SK_UNIT;
        group_floats scales = {{0}}, offsets = {{0}};
        for (int i = 0; i < (g->offset == SK_SCALE_ALONE ? 1 : 2); i++) {
            const char *at = group + i * sk_scale_bytes(g);
            /* Each type by itself: a loop without a choice becomes vectors. */
            *(i ? &offsets : &scales) = g->type == SK_F32    ? read_floats(at, SK_F32)
                                        : g->type == SK_BF16 ? read_floats(at, SK_BF16)
                                                             : read_floats(at, SK_F16);
        }
        switch (g->codes * SK_OFFSETS + g->offset) {
            UNPACK_CASE(SK_U4, SK_SCALE_ALONE) UNPACK_CASE(SK_U4, SK_MINIMUM) UNPACK_CASE(SK_U4, SK_ZERO)
            UNPACK_CASE(SK_S8, SK_SCALE_ALONE) UNPACK_CASE(SK_S8, SK_MINIMUM) UNPACK_CASE(SK_S8, SK_ZERO)
            UNPACK_CASE(SK_E4M3, SK_SCALE_ALONE)
        }
        out += units * SK_UNIT_VALUES;
        ahead += units * unit;
    }
}
