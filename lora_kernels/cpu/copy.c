/* Weights into pages: many matrices of one shape, converted, turned and cut into blocks as they go. */
#include "sgmv.h"

#include <string.h>

/* bfloat16 columns of a that are woven, of which half make a vector: see lk_site. */
enum { HALF = 8, WOVEN = 2 * HALF };
/* Side of the squares of pairs of ranks in which bfloat16 is turned, in registers. */
enum { SIDE = LK_UNIT / 2 };

typedef uint16_t values __attribute__((vector_size(HALF * sizeof(uint16_t))));
typedef uint32_t pairs __attribute__((vector_size(SIDE * sizeof(uint32_t))));

#if defined(__clang__)
#define SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

static void weave(const uint16_t *from, int64_t columns, uint16_t *to) {
    for (int64_t c = 0; c < columns; c += WOVEN) {
        values first, second;
        memcpy(&first, from + c, sizeof first);
        memcpy(&second, from + c + HALF, sizeof second);
        values low = SHUFFLE(values, first, second, 0, 8, 1, 9, 2, 10, 3, 11);
        values high = SHUFFLE(values, first, second, 4, 12, 5, 13, 6, 14, 7, 15);
        memcpy(to + c, &low, sizeof low);
        memcpy(to + c + HALF, &high, sizeof high);
    }
}

static float same_f32(float value) { return value; }
static uint16_t same_bf16(uint16_t value) { return value; }
static int8_t same_i8(int8_t value) { return value; }

/* Rows [row, end) of columns [begin, begin + count), all of one block and one unit; `out` is where the block begins,
 * whose column `at` is the first. The rest of the last 16 bfloat16 columns of a becomes zero, and so does the second
 * rank of a pair where there is none. */
#define COPY(name, from_type, to_type, convert)                                                                     \
    static void name##_line(const lk_matrix *m, const void *data, int64_t row, int64_t begin, int64_t count,        \
                            to_type *line) {                                                                        \
        const int64_t step = m->from_column;                                                                        \
        const from_type *in = (const from_type *)data + row * m->from_row + begin * step;                           \
        if (step == 1)                                                                                              \
            for (int64_t i = 0; i < count; i++) line[i] = convert(in[i]);                                           \
        else                                                                                                        \
            for (int64_t i = 0; i < count; i++) line[i] = convert(in[i * step]);                                    \
    }                                                                                                               \
    static void name(const lk_matrix *m, const void *data, int64_t row, int64_t end, int64_t begin, int64_t count,  \
                     int64_t at, void *out) {                                                                       \
        for (int64_t r = row; r < end; r += 1 + m->pairs) {                                                         \
            to_type *to = (to_type *)out + r % LK_UNIT * m->block + at * (1 + m->pairs);                            \
            to_type line[LK_B_BLOCK] = {0};                                                                         \
            name##_line(m, data, r, begin, count, line);                                                            \
            if (m->pairs) {                                                                                         \
                to_type second[LK_B_BLOCK] = {0};                                                                   \
                if (r + 1 < end) name##_line(m, data, r + 1, begin, count, second);                                 \
                for (int64_t i = 0; i < count; i++) {                                                               \
                    to[2 * i] = line[i];                                                                            \
                    to[2 * i + 1] = second[i];                                                                      \
                }                                                                                                   \
            } else if (sizeof(to_type) == sizeof(uint16_t)) {                                                       \
                weave((const uint16_t *)line, count, (uint16_t *)to);                                               \
            } else {                                                                                                \
                memcpy(to, line, (size_t)count * sizeof(to_type));                                                  \
            }                                                                                                       \
        }                                                                                                           \
    }

COPY(f32_to_f32, float, float, same_f32)
COPY(f32_to_bf16, float, uint16_t, lk_f32_to_bf16)
COPY(bf16_to_f32, uint16_t, float, lk_bf16_to_f32)
COPY(bf16_to_bf16, uint16_t, uint16_t, same_bf16)
COPY(i8_to_i8, int8_t, int8_t, same_i8)

/* The first halves of a and b, pair by pair in turn; the second halves. */
static pairs low(pairs a, pairs b) { return SHUFFLE(pairs, a, b, 0, 4, 1, 5); }
static pairs high(pairs a, pairs b) { return SHUFFLE(pairs, a, b, 2, 6, 3, 7); }

/* to[p][c] = pair p of from[c], which are `step` elements apart. */
static void turn_square(const uint16_t *from, int64_t step, pairs *to) {
    pairs c[SIDE];
    for (int i = 0; i < SIDE; i++) memcpy(&c[i], from + i * step, sizeof c[i]);
    pairs even[2] = {low(c[0], c[2]), high(c[0], c[2])}, odd[2] = {low(c[1], c[3]), high(c[1], c[3])};
    for (int half = 0; half < 2; half++) {
        to[2 * half] = low(even[half], odd[half]);
        to[2 * half + 1] = high(even[half], odd[half]);
    }
}

/* bf16_to_bf16 into pairs where the rows of `from` are adjacent: in squares as far as they go. */
static void turn_bf16(const lk_matrix *m, const void *data, int64_t row, int64_t end, int64_t begin, int64_t count,
                      int64_t at, void *out) {
    int64_t c = 0;
    for (; end - row == LK_UNIT && c + SIDE <= count; c += SIDE) {
        pairs square[SIDE];
        turn_square((const uint16_t *)data + (begin + c) * m->from_column + row, m->from_column, square);
        for (int p = 0; p < SIDE; p++)
            memcpy((uint16_t *)out + 2 * (p * m->block + at + c), &square[p], sizeof square[p]);
    }
    if (c < count) bf16_to_bf16(m, data, row, end, begin + c, count - c, at + c, out);
}

typedef void copy_function(const lk_matrix *m, const void *data, int64_t row, int64_t end, int64_t begin, int64_t count,
                           int64_t at, void *out);

/* Block by block: the lines of one are in the first-level cache for all its rows, also of a turned matrix. */
static void copy_blocks(const lk_matrix *m, copy_function *copy, const void *from, char *to) {
    const int64_t size = lk_element_size(m->to_dtype), in_block = LK_UNIT * m->block * size;
    for (int64_t row = 0; row < m->rows; row += LK_UNIT, to += m->to_unit * size) {
        char *out = to;
        int64_t end = row + LK_UNIT < m->rows ? row + LK_UNIT : m->rows;
        for (int64_t begin = 0; begin < m->columns; begin += m->block, out += in_block) {
            int64_t left = m->columns - begin;
            copy(m, from, row, end, begin, left < m->block ? left : m->block, 0, out);
        }
    }
}

void lk_copy(const lk_matrix *m, const void *const *from, void *const *to, int64_t count) {
    static copy_function *const functions[LK_DTYPES][LK_DTYPES] = {
        {f32_to_f32, f32_to_bf16}, {bf16_to_f32, bf16_to_bf16}, {NULL, NULL, i8_to_i8}};
    copy_function *copy = functions[m->from_dtype][m->to_dtype];
    if (copy == bf16_to_bf16 && m->pairs && m->from_row == 1) copy = turn_bf16;
    for (int64_t i = 0; i < count; i++) copy_blocks(m, copy, from[i], to[i]);
}
