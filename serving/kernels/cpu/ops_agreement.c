/* A table of operations is used only after it gave what the portable one gives, on this processor. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "ops.h"

/* No multiple of any vector, four KV blocks, two tiles of keys, six query rows. */
enum { N = 83, HALF = 17, DIM = 34, PADDED = 48, BLOCK = 20, LANES = 32, TABLE = 4, QUERIES = 2, HEADS = 3, FIRST = 69 };
enum { HEAD = DIM * LANES + BLOCK * PADDED };

typedef struct {
    float normed[N], activated[N], rotated[DIM], wide[N], attended[QUERIES * HEADS * DIM], best;
    /* The same from bfloat16. */
    float half_normed[N], half_activated[N], half_attended[QUERIES * HEADS * DIM];
} answers;

typedef struct {
    float x[N], y[N], q[QUERIES * HEADS * DIM];
    float kv[TABLE * HEAD];
    uint16_t half_kv[TABLE * HEAD];
} problem;

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static void make(problem *p) {
    uint32_t state = 1;
    float *all = (float *)p;
    for (size_t i = 0; i < offsetof(problem, half_kv) / sizeof(float); i++) all[i] = noise(&state);
    for (int i = 0; i < TABLE * HEAD; i++) p->half_kv[i] = sk_to_bf16(p->kv[i]);
}

static void widen(const uint16_t *from, int count, float *to) {
    for (int i = 0; i < count; i++) to[i] = sk_from_bf16(from[i]);
}

static int solve(const sk_ops *ops, problem *p, int64_t dtype, answers *out) {
    static const int32_t table[TABLE] = {2, 0, 3, 1};
    char *kv = dtype == SK_BF16 ? (char *)p->half_kv : (char *)p->kv;
    sk_blocks blocks = {kv, HEAD, BLOCK, LANES, DIM, PADDED, dtype};
    sk_span span = {p->q, out->attended, HEADS * DIM, HEADS * DIM, SK_F32, QUERIES, HEADS, FIRST, table, 0.5f, 0};
    uint16_t normed[N], activated[N], attended[QUERIES * HEADS * DIM];
    float *scratch = malloc((size_t)sk_attend_floats(&blocks, QUERIES * HEADS) * sizeof(float));
    if (!scratch) return 0;
    ops->rms_norm(p->x, p->y, 1e-5f, N, out->normed, SK_F32);
    ops->silu_mul(p->x, p->y, N, out->activated, SK_F32);
    memcpy(out->rotated, p->x, sizeof out->rotated);
    ops->rotate(out->rotated, p->y, p->y + HALF, HALF);
    ops->widen(kv, dtype, N, out->wide);
    ops->attend(&span, &blocks, scratch);
    ops->rms_norm(p->x, p->y, 1e-5f, N, normed, SK_BF16);
    ops->silu_mul(p->x, p->y, N, activated, SK_BF16);
    span.out = attended;
    span.out_dtype = SK_BF16;
    ops->attend(&span, &blocks, scratch);
    widen(normed, N, out->half_normed);
    widen(activated, N, out->half_activated);
    widen(attended, QUERIES * HEADS * DIM, out->half_attended);
    out->best = (float)ops->argmax(p->x, N);
    free(scratch);
    return 1;
}

int sk_ops_agree(const sk_ops *candidate) {
    int agree = 1;
    problem *p = malloc(sizeof *p);
    if (!p) return 0;
    make(p);
    for (int64_t dtype = SK_F32; dtype <= SK_BF16; dtype++) {
        answers expected, actual;
        agree &= solve(&sk_ops_portable, p, dtype, &expected) && solve(candidate, p, dtype, &actual);
        for (size_t i = 0; agree && i < sizeof expected / sizeof(float); i++) {
            /* Rounding to bfloat16 costs 2^-9 of each product, and what lies between two of its numbers may fall to either. */
            int exact = i < offsetof(answers, half_normed) / sizeof(float) && !(candidate->rounds && dtype == SK_BF16);
            float tolerance = exact ? 1e-4f : 0.01f;
            float e = ((float *)&expected)[i], a = ((float *)&actual)[i];
            agree = fabsf(e - a) <= tolerance * (1 + fabsf(e));
        }
    }
    free(p);
    return agree;
}
