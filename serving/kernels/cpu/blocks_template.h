/* Products of a few rows with keys or values, once for all instruction sets: see ops_template.h. */

enum { WIDE = NV == 1 };  /* 32 registers of 16 lanes: sums of 24 groups of 16 stay in them, else of 6 */
/* Groups that are summed together, and blocks of a tile, at most. */
enum { MOST_GROUPS = 4, MOST_BLOCKS = SK_KEYS };

/* bfloat16 is multiplied with bfloat16 where one instruction takes pairs of both, else with float32. */
#ifdef DOT
enum { DOTS = 1 };
#else
enum { DOTS = 0 };
#define DOT(sums, a, b) ((void)(a), (void)(b), sums)
#endif
/* 8 bits are multiplied with integers of 16 bits, else with float32. */
#ifdef DOT16
enum { INTEGERS = 1 };
#else
enum { INTEGERS = 0 };
#define DOT16(sums, a, b) ((void)(a), (void)(b), sums)
#define WIDEN(p) load_pairs(p, 0)
#endif

/* Return whether pairs are multiplied with pairs. */
INLINE int takes_pairs(const int dtype) { return (dtype == SK_BF16 && DOTS) || (dtype == SK_INT8 && INTEGERS); }

/* Rows of a matrix b: `rows` of each segment, `last` of the last one. They lie in lines of so many lanes: one in a
 * line, or two of bfloat16 or 8 bits, woven into pairs. */
typedef struct {
    const char *begin[MOST_BLOCKS];
    int64_t count, rows, last, lanes;
} segments;

/* 16 of b's columns: how far in a segment, in bytes; and where their products go. */
typedef struct {
    int64_t offset;
    float *c;
} group;

/* c (+)= a b for some rows of a, lda floats apart whatever they hold. With 16-bit a and 8-bit b, c is integers or,
 * where they are added to it, gets `factors` times as much: one for each row of a. */
typedef struct {
    const void *a;
    const segments *b;
    int64_t lda, ldc;
    int add;
    const float *factors;
} product;

typedef vf tile_sums[WIDE ? 12 : 6][MOST_GROUPS][NV];

/* sums[R, 16] += a[R] b, for one row of b and G groups; of pairs one of a line's two. */
INLINE void multiply_row(const int R, const int G, const int dtype, const int second, const float *a, int64_t lda,
                         const char *const *b, int64_t at, tile_sums sums) {
    /* The smaller operand stays in registers: 12 sums of two vectors each, 3 factors and one vector fill 16. */
    const int factors_stay = G > 1 && !WIDE;
    vf f[6], w[MOST_GROUPS][NV];
#pragma GCC unroll 6
    for (int r = 0; r < R && factors_stay; r++) f[r] = splat(a[r * lda]);
#pragma GCC unroll 4
    for (int g = 0; g < G && factors_stay; g++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            vf lone = load_as(b[g], at + v * W, dtype, second);
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) sums[r][g][v] = FMA(f[r], lone, sums[r][g][v]);
        }
#pragma GCC unroll 4
    for (int g = 0; g < G && !factors_stay; g++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) w[g][v] = load_as(b[g], at + v * W, dtype, second);
#pragma GCC unroll 12
    for (int r = 0; r < R && !factors_stay; r++) {
        vf lone = splat(a[r * lda]);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) sums[r][g][v] = FMA(lone, w[g][v], sums[r][g][v]);
    }
}

/* The same for both rows of a line, or, `kept` being the bits of the first, for that one: what lies beside it, and
 * beside its factor, may be NaN. */
INLINE void multiply_pair(const int R, const int G, const int dtype, const int32_t kept, const uint16_t *a, int64_t lda,
                          const char *const *b, int64_t at, tile_sums sums) {
    vi w[MOST_GROUPS][NV];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            w[g][v] = dtype == SK_INT8 ? (vi)WIDEN((const void *)(b[g] + 2 * (at + v * W))) : load_pairs(b[g], at + v * W);
            w[g][v] &= kept;
        }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        int32_t pair;
        memcpy(&pair, a + 2 * r * lda, sizeof pair);
        const vi factors = (pair & kept) - (vi){0};
#pragma GCC unroll 4
        for (int g = 0; g < G; g++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++)
                sums[r][g][v] = dtype == SK_INT8 ? (vf)DOT16(sums[r][g][v], factors, w[g][v])
                                                 : (vf)DOT(sums[r][g][v], factors, w[g][v]);
    }
}

/* A line's rows; `lone`: of pairs the first only, as the second holds nothing. */
INLINE void multiply_line(const int R, const int G, const int dtype, const int lone, const char *a, int64_t lda,
                          const char *const *b, int64_t line, int64_t lanes, tile_sums sums) {
    const int64_t at = line * lanes;
    if (takes_pairs(dtype)) {
        multiply_pair(R, G, dtype, lone ? 0xffff : -1, (const uint16_t *)a + 2 * line, lda, b, at, sums);
        return;
    }
    const float *factors = (const float *)a + (dtype == SK_F32 ? line : 2 * line);
    multiply_row(R, G, dtype, 0, factors, lda, b, at, sums);
    if (dtype != SK_F32 && !lone) multiply_row(R, G, dtype, 1, factors + 1, lda, b, at, sums);
}

/* R rows of a from `row` on, G groups. Every number of c is one chain of sums over b's rows, or of integers, whatever R
 * and G are. */
INLINE void multiply(const int R, const int G, const int dtype, const product *p, int64_t row, const group *groups) {
    const int pairs = dtype != SK_F32, integers = dtype == SK_INT8 && INTEGERS;
    const segments *s = p->b;
    const char *a = (const char *)((const float *)p->a + row * p->lda);
    tile_sums sums;
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int g = 0; g < G; g++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++)
                sums[r][g][v] = p->add && !integers ? load(groups[g].c + (row + r) * p->ldc + v * W) : splat(0.0f);
    for (int64_t i = 0; i < s->count; i++, a += s->rows * (takes_pairs(dtype) ? 2 : 4)) {
        const int64_t rows = i + 1 < s->count ? s->rows : s->last, lines = pairs ? rows / 2 : rows;
        const char *b[MOST_GROUPS];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) b[g] = s->begin[i] + groups[g].offset;
        for (int64_t line = 0; line < lines; line++)
            multiply_line(R, G, dtype, 0, a, p->lda, b, line, s->lanes, sums);
        if (pairs && rows % 2) multiply_line(R, G, dtype, 1, a, p->lda, b, lines, s->lanes, sums);
    }
    /* Groups in order: the second may begin where unused lanes of the first end up. */
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int g = 0; g < G; g++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) {
                float *c = groups[g].c + (row + r) * p->ldc + v * W;
                if (integers && p->add)
                    sums[r][g][v] = FMA(__builtin_convertvector((vi)sums[r][g][v], vf), splat(p->factors[row + r]), load(c));
                store(c, sums[r][g][v]);
            }
}

/* R rows of so many groups: together where there is room for their sums, as one by one each product would wait for the
 * one before. */
INLINE void multiply_rows(const int R, const int width, const int dtype, const product *p, int64_t row,
                          const group *groups) {
    const int together = WIDE ? (R > 6 && width > 2 ? 2 : width) : (R > 3 ? 1 : width);
#pragma GCC unroll 4
    for (int g = 0; g < width; g += together) multiply(R, together, dtype, p, row, groups + g);
}

INLINE void multiply_groups(const int width, const int dtype, const product *p, int64_t rows, const group *groups) {
    int64_t row = 0;
    for (; WIDE && width > 1 && rows - row >= 12; row += 12) multiply_rows(12, width, dtype, p, row, groups);
    for (; rows - row >= 6; row += 6) multiply_rows(6, width, dtype, p, row, groups);
    switch (rows - row) {
    case 5: multiply_rows(5, width, dtype, p, row, groups); break;
    case 4: multiply_rows(4, width, dtype, p, row, groups); break;
    case 3: multiply_rows(3, width, dtype, p, row, groups); break;
    case 2: multiply_rows(2, width, dtype, p, row, groups); break;
    case 1: multiply_rows(1, width, dtype, p, row, groups); break;
    }
}

INLINE void multiply_all(const int dtype, const product *p, int64_t rows, const group *groups, int count) {
    if (WIDE && count == 4) {
        multiply_groups(4, dtype, p, rows, groups);
        return;
    }
    int g = 0;
    for (; count - g >= 2; g += 2) multiply_groups(2, dtype, p, rows, groups + g);
    if (g < count) multiply_groups(1, dtype, p, rows, groups + g);
}

/* Not inlined: within `attend` sums would leave their registers. */
TARGET static __attribute__((noinline)) void multiply_f32(const product *p, int64_t rows, const group *groups, int count) {
    multiply_all(SK_F32, p, rows, groups, count);
}

TARGET static __attribute__((noinline)) void multiply_bf16(const product *p, int64_t rows, const group *groups, int count) {
    multiply_all(SK_BF16, p, rows, groups, count);
}

TARGET static __attribute__((noinline)) void multiply_int8(const product *p, int64_t rows, const group *groups, int count) {
    multiply_all(SK_INT8, p, rows, groups, count);
}

INLINE void multiply_as(const int dtype, const product *p, int64_t rows, const group *groups, int count) {
    (dtype == SK_F32 ? multiply_f32 : dtype == SK_BF16 ? multiply_bf16 : multiply_int8)(p, rows, groups, count);
}
