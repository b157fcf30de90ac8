/* Weights into pages: many matrices of one shape, converted, turned and cut into blocks as they go. */
#include "sgmv.h"

#include <string.h>

/* Side of the squares in which bfloat16 is turned, in registers: a third of the time. */
enum { SIDE = LK_UNIT };
/* bfloat16 columns of a that are woven: see lk_site. */
enum { WOVEN = 2 * SIDE };

typedef uint16_t values __attribute__((vector_size(SIDE * sizeof(uint16_t))));

/* The first halves of a and b, value by value in turn; the second halves. */
#if defined(__clang__)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW(a, b) __builtin_shuffle(a, b, (values){0, 8, 1, 9, 2, 10, 3, 11})
#define HIGH(a, b) __builtin_shuffle(a, b, (values){4, 12, 5, 13, 6, 14, 7, 15})
#endif

static void put_in_turn(values first, values second, uint16_t *to) {
    values low = LOW(first, second), high = HIGH(first, second);
    memcpy(to, &low, sizeof low);
    memcpy(to + SIDE, &high, sizeof high);
}

static void weave(const uint16_t *from, int64_t columns, uint16_t *to) {
    for (int64_t c = 0; c < columns; c += WOVEN) {
        values first, second;
        memcpy(&first, from + c, sizeof first);
        memcpy(&second, from + c + SIDE, sizeof second);
        put_in_turn(first, second, to + c);
    }
}

static float same_f32(float value) { return value; }
static uint16_t same_bf16(uint16_t value) { return value; }
static int8_t same_i8(int8_t value) { return value; }

/* Rows [row, end) of columns [begin, begin + count), all of one block and one unit; `out` is where the block begins, whose
 * column `at` is the first. The rest of the last 16 bfloat16 columns of a becomes zero, and so does the second rank of a
 * pair where there is none. */
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
            to_type line[LK_B_BLOCK] = {0}, second[LK_B_BLOCK] = {0};                                               \
            name##_line(m, data, r, begin, count, line);                                                            \
            if (m->pairs) {                                                                                         \
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

/* to[r][c] = from[c][r], `step` elements from row to row of `from`. A perfect shuffle of all 64 moves the bits of (row,
 * column) round by one place, three of them exchange row and column. */
static void turn_square(const uint16_t *from, int64_t step, values *to) {
    values shuffled[SIDE];
    for (int i = 0; i < SIDE; i++) memcpy(&to[i], from + i * step, sizeof to[i]);
    for (int stage = 0; stage < 3; stage++) {
        for (int i = 0; i < SIDE / 2; i++) {
            shuffled[2 * i] = LOW(to[i], to[i + SIDE / 2]);
            shuffled[2 * i + 1] = HIGH(to[i], to[i + SIDE / 2]);
        }
        memcpy(to, shuffled, sizeof shuffled);
    }
}

/* bf16_to_bf16 into pairs where the rows of `from` are adjacent: in squares as far as they go. */
static void turn_bf16(const lk_matrix *m, const void *data, int64_t row, int64_t end, int64_t begin, int64_t count,
                      int64_t at, void *out) {
    int64_t c = 0;
    for (; end - row == SIDE && c + SIDE <= count; c += SIDE) {
        values square[SIDE];
        turn_square((const uint16_t *)data + (begin + c) * m->from_column + row, m->from_column, square);
        for (int i = 0; i < SIDE; i += 2)
            put_in_turn(square[i], square[i + 1], (uint16_t *)out + i * m->block + 2 * (at + c));
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
