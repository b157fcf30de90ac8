/* sk_unpack of one instruction set, from its `group_floats`, `read_floats` and `unpack_units`: UNPACK, declared with
 * UNPACK_ATTRIBUTE. A loop for each kind of code and offset. */
#define UNPACK_CASE(codes, offset)                                                         \
    case codes * SK_OFFSETS + offset:                                                      \
        unpack_units(from, units, codes, offset, &scales, &offsets, out, ahead);           \
        break;

UNPACK_ATTRIBUTE void UNPACK(const sk_groups *g, const char *panel, int64_t k, int64_t length, uint16_t *out,
                             const char *ahead) {
    const int64_t unit = sk_unit_bytes(g), end = k + length;
    int64_t start = k / g->size * g->size;
    const char *group = panel + k / g->size * sk_group_bytes(g);
    for (; k < end; start += g->size, group += sk_group_bytes(g)) {
        const char *from = group + sk_group_head(g) + (k - start) / SK_UNIT * unit;
        const int64_t upto = start + g->size < end ? start + g->size : end, units = (upto - k) / SK_UNIT;
        const group_floats scales = read_floats(group, g->type);
        const group_floats offsets =
            g->offset == SK_SCALE_ALONE ? scales : read_floats(group + sk_scale_bytes(g), g->type);
        switch (g->codes * SK_OFFSETS + g->offset) {
            UNPACK_CASE(SK_U4, SK_SCALE_ALONE)
            UNPACK_CASE(SK_U4, SK_MINIMUM)
            UNPACK_CASE(SK_U4, SK_ZERO)
            UNPACK_CASE(SK_S8, SK_SCALE_ALONE)
            UNPACK_CASE(SK_S8, SK_MINIMUM)
            UNPACK_CASE(SK_S8, SK_ZERO)
            UNPACK_CASE(SK_E4M3, SK_SCALE_ALONE)
        }
        out += units * SK_UNIT_VALUES;
        ahead += units * unit;
        k = upto;
    }
}
#undef UNPACK_CASE
