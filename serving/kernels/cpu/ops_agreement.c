/* A table of operations is used only after it gave what the portable one gives, on this processor. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "ops.h"

/* No multiple of any vector, four KV blocks, two tiles of keys, six query rows. */
enum { N = 83, HALF = 17, DIM = 34, PADDED = 48, BLOCK = 20, LANES = 32, TABLE = 4, QUERIES = 2, HEADS = 3, FIRST = 69 };
/* The first query's window begins in the first tile of keys, the second one's too, two keys before its end. */
enum { WINDOW = 12 };
enum { HEAD = DIM * LANES + BLOCK * PADDED, FACTORS = 2 * LANES, HEAD_BYTES = HEAD + 4 * FACTORS };

typedef struct {
    float normed[N], activated[N], gelu[N], capped[N], rotated[DIM], wide[N], best, factor;
    float attended[QUERIES * HEADS * DIM], windowed[QUERIES * HEADS * DIM];
    /* Integers, and the same in bfloat16: what lies between two numbers may fall to either. */
    float rounded[N], half_normed[N], half_activated[N], half_attended[QUERIES * HEADS * DIM];
} answers;

typedef struct {
    float x[N], y[N], q[QUERIES * HEADS * DIM];
    float kv[TABLE * HEAD];
    uint16_t half_kv[TABLE * HEAD];
    char byte_kv[TABLE * HEAD_BYTES];
} problem;

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static void make(problem *p) {
    uint32_t state = 1;
    float *all = (float *)p;
    for (size_t i = 0; i < offsetof(problem, half_kv) / sizeof(float); i++) all[i] = noise(&state);
    for (int i = 0; i < TABLE * HEAD; i++) {
        p->half_kv[i] = lk_f32_to_bf16(p->kv[i]);
        p->byte_kv[i / HEAD * HEAD_BYTES + i % HEAD] = (char)(int8_t)(127 * p->kv[i]);
    }
    for (int i = 0; i < TABLE * FACTORS; i++) {
        float factor = (1.5f + p->kv[i]) / 127;
        memcpy(p->byte_kv + i / FACTORS * HEAD_BYTES + HEAD + i % FACTORS * 4, &factor, sizeof factor);
    }
}

static void widen(const uint16_t *from, int count, float *to) {
    for (int i = 0; i < count; i++) to[i] = lk_bf16_to_f32(from[i]);
}

static int solve(const sk_ops *ops, problem *p, int64_t dtype, answers *out) {
    static const int32_t table[TABLE] = {2, 0, 3, 1};
    char *kv = dtype == SK_INT8 ? p->byte_kv : dtype == SK_BF16 ? (char *)p->half_kv : (char *)p->kv;
    sk_blocks blocks = {kv, dtype == SK_INT8 ? HEAD_BYTES : HEAD, BLOCK, LANES, DIM, PADDED, dtype};
    sk_span span = {p->q, out->attended, HEADS * DIM, HEADS * DIM, SK_F32, QUERIES, HEADS, FIRST, table, 0.5f, 0.0f, 0};
    uint16_t normed[N], activated[N], attended[QUERIES * HEADS * DIM];
    float *scratch = malloc((size_t)sk_attend_floats(&blocks, QUERIES * HEADS) * sizeof(float));
    if (!scratch) return 0;
    ops->rms_norm(p->x, p->y, 1e-5f, N, out->normed, SK_F32);
    ops->silu_mul(p->x, p->y, N, out->activated, SK_F32);
    memcpy(out->rotated, p->x, sizeof out->rotated);
    ops->rotate(out->rotated, p->y, p->y + HALF, HALF);
    int64_t wide = dtype == SK_BF16 ? SK_BF16 : SK_F32;
    ops->widen(wide == SK_BF16 ? (const void *)p->half_kv : p->kv, wide, N, out->wide);
    int8_t integers[N];
    out->factor = ops->quantise(p->x, N, integers);
    for (int i = 0; i < N; i++) out->rounded[i] = integers[i];
    ops->attend(&span, &blocks, scratch);
    sk_span windowed = span;
    windowed.out = out->windowed;
    windowed.window = WINDOW;
    windowed.cap = 1.5f;
    ops->attend(&windowed, &blocks, scratch);
    ops->gelu_mul(p->x, p->y, N, out->gelu, SK_F32);
    memcpy(out->capped, p->x, sizeof out->capped);
    ops->soft_cap(out->capped, 0.5f, N);
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
    for (int64_t dtype = SK_F32; dtype < SK_DTYPES; dtype++) {
        answers expected, actual;
        agree &= solve(&sk_ops_portable, p, dtype, &expected) && solve(candidate, p, dtype, &actual);
        for (size_t i = 0; agree && i < sizeof expected / sizeof(float); i++) {
            /* Rounding to bfloat16 costs 2^-9 of each product, to integers of 16 bits 2^-16 of the largest. */
            int halves = i >= offsetof(answers, rounded) / sizeof(float) || (candidate->rounds && dtype == SK_BF16);
            float tolerance = halves ? 0.01f : dtype == SK_INT8 ? 1e-3f : 1e-4f;
            float e = ((float *)&expected)[i], a = ((float *)&actual)[i];
            agree = fabsf(e - a) <= tolerance * (1 + fabsf(e));
        }
    }
    free(p);
    return agree;
}
