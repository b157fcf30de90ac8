/* Weights into pages: many matrices of one shape, converted and turned as they go. */
#include "sgmv.h"

#include <string.h>

/* Columns of a turned matrix that are copied for all rows before the next: their lines are in the first-level cache then. */
enum { TURNED_COLUMNS = 64 };
/* Side of the squares in which bfloat16 is turned, in registers: a third of the time. */
enum { SIDE = 8 };

static float same_f32(float value) { return value; }
static uint16_t same_bf16(uint16_t value) { return value; }

#define COPY(name, from_type, to_type, convert)                                                                   \
    static void name(const lk_matrix *m, const from_type *from, to_type *to) {                                    \
        const int64_t columns = m->columns, rows = m->rows, from_row = m->from_row, from_column = m->from_column; \
        const int64_t to_row = m->to_row, step = from_column == 1 ? columns : TURNED_COLUMNS;                     \
        for (int64_t begin = 0; begin < columns; begin += step) {                                                 \
            int64_t end = begin + step < columns ? begin + step : columns;                                        \
            for (int64_t row = 0; row < rows; row++) {                                                            \
                const from_type *in = from + row * from_row;                                                      \
                to_type *out = to + row * to_row;                                                                 \
                if (from_column == 1)                                                                             \
                    for (int64_t i = begin; i < end; i++) out[i] = convert(in[i]);                                \
                else                                                                                              \
                    for (int64_t i = begin; i < end; i++) out[i] = convert(in[i * from_column]);                  \
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
            turn_square(from + c * m->from_column + r, m->from_column, to + r * m->to_row + c, m->to_row);
    lk_matrix right = *m, below = *m;
    right.rows = rows;
    right.columns = m->columns - columns;
    bf16_to_bf16(&right, from + columns * m->from_column, to + columns);
    below.rows = m->rows - rows;
    bf16_to_bf16(&below, from + rows, to + rows * m->to_row);
}

void lk_copy(const lk_matrix *m, const void *const *from, void *const *to, int64_t count) {
    int turned = m->from_row == 1 && m->from_column != 1;
    for (int64_t i = 0; i < count; i++)
        if (m->from_dtype == LK_F32 && m->to_dtype == LK_F32)
            f32_to_f32(m, from[i], to[i]);
        else if (m->from_dtype == LK_F32)
            f32_to_bf16(m, from[i], to[i]);
        else if (m->to_dtype == LK_F32)
            bf16_to_f32(m, from[i], to[i]);
        else
            (turned ? turn_bf16 : bf16_to_bf16)(m, from[i], to[i]);
}
