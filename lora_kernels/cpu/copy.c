/* Weights into pages: many matrices of one shape, converted, turned and cut into blocks as they go. */
#include "sgmv.h"

#include <string.h>

/* Side of the squares in which bfloat16 is turned, in registers: a third of the time. */
enum { SIDE = LK_UNIT };

static float same_f32(float value) { return value; }
static uint16_t same_bf16(uint16_t value) { return value; }

/* Where a value is in a copy, in elements. */
static int64_t place_of(const lk_matrix *m, int64_t row, int64_t column) {
    int64_t inside = column % m->block;
    return row / LK_UNIT * m->to_unit + (column - inside) * LK_UNIT + row % LK_UNIT * m->block + inside;
}

/* Block by block: the lines of one are in the first-level cache for all its rows, also of a turned matrix. */
#define COPY(name, from_type, to_type, convert)                                                                   \
    static void name(const lk_matrix *m, const from_type *from, to_type *to, int64_t row, int64_t end) {          \
        const int64_t columns = m->columns, block = m->block, step = m->from_column;                              \
        for (int64_t begin = 0; begin < columns; begin += block) {                                                \
            int64_t count = begin + block < columns ? block : columns - begin;                                    \
            for (int64_t r = row; r < end; r++) {                                                                 \
                const from_type *in = from + r * m->from_row + begin * step;                                      \
                to_type *out = to + place_of(m, r, begin);                                                        \
                if (step == 1)                                                                                    \
                    for (int64_t i = 0; i < count; i++) out[i] = convert(in[i]);                                  \
                else                                                                                              \
                    for (int64_t i = 0; i < count; i++) out[i] = convert(in[i * step]);                           \
            }                                                                                                     \
        }                                                                                                         \
    }

COPY(f32_to_f32, float, float, same_f32)
COPY(f32_to_bf16, float, uint16_t, lk_f32_to_bf16)
COPY(bf16_to_f32, uint16_t, float, lk_bf16_to_f32)
COPY(bf16_to_bf16, uint16_t, uint16_t, same_bf16)

typedef uint16_t values __attribute__((vector_size(SIDE * sizeof(uint16_t))));

/* The first halves of a and b, value by value in turn; the second halves. */
#if defined(__clang__)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW(a, b) __builtin_shuffle(a, b, (values){0, 8, 1, 9, 2, 10, 3, 11})
#define HIGH(a, b) __builtin_shuffle(a, b, (values){4, 12, 5, 13, 6, 14, 7, 15})
#endif

/* to[r][c] = from[c][r], steps in elements. A perfect shuffle of all 64 moves the bits of (row, column) round by one place,
 * three of them exchange row and column. */
static void turn_square(const uint16_t *from, int64_t from_step, uint16_t *to, int64_t to_step) {
    values square[SIDE], shuffled[SIDE];
    for (int i = 0; i < SIDE; i++) memcpy(&square[i], from + i * from_step, sizeof square[i]);
    for (int stage = 0; stage < 3; stage++) {
        for (int i = 0; i < SIDE / 2; i++) {
            shuffled[2 * i] = LOW(square[i], square[i + SIDE / 2]);
            shuffled[2 * i + 1] = HIGH(square[i], square[i + SIDE / 2]);
        }
        memcpy(square, shuffled, sizeof square);
    }
    for (int i = 0; i < SIDE; i++) memcpy(to + i * to_step, &square[i], sizeof square[i]);
}

/* bf16_to_bf16 where the rows of `from` are adjacent: in squares as far as they go. */
static void turn_bf16(const lk_matrix *m, const uint16_t *from, uint16_t *to) {
    int64_t rows = m->rows / SIDE * SIDE, columns = m->columns / SIDE * SIDE;
    for (int64_t c = 0; c < columns; c += SIDE)
        for (int64_t r = 0; r < rows; r += SIDE)
            turn_square(from + c * m->from_column + r, m->from_column, to + place_of(m, r, c), m->block);
    for (int64_t c = columns; c < m->columns; c++)
        for (int64_t r = 0; r < rows; r++) to[place_of(m, r, c)] = from[c * m->from_column + r];
    bf16_to_bf16(m, from, to, rows, m->rows);
}

void lk_copy(const lk_matrix *m, const void *const *from, void *const *to, int64_t count) {
    int turned = m->from_row == 1 && m->from_column != 1;
    for (int64_t i = 0; i < count; i++)
        if (m->from_dtype == LK_F32 && m->to_dtype == LK_F32)
            f32_to_f32(m, from[i], to[i], 0, m->rows);
        else if (m->from_dtype == LK_F32)
            f32_to_bf16(m, from[i], to[i], 0, m->rows);
        else if (m->to_dtype == LK_F32)
            bf16_to_f32(m, from[i], to[i], 0, m->rows);
        else if (turned)
            turn_bf16(m, from[i], to[i]);
        else
            bf16_to_bf16(m, from[i], to[i], 0, m->rows);
}
