/* The choice of kernels, and the entry points. linear_parts.c cuts the work. */
#include "linear.h"

#include <string.h>

#include "linear_job.h"

/* Every thread prepares up to this many rows of x for itself, which is cheaper than a barrier. */
enum { PRIVATE_ROWS = 4 };

static const sk_kernels *chosen[SK_DTYPES] = {&sk_portable[0], &sk_portable[1], &sk_portable[2]};
static int64_t bound_rows[SK_DTYPES];
static sk_unpack *chosen_unpack = sk_portable_unpack;
static sk_fused *chosen_fused;

/* The type of weights that the tiles of this type read. */
static int64_t type_of_tiles(int64_t dtype) { return dtype == SK_GROUPED ? SK_BF16 : dtype; }

static const sk_kernels *chosen_for(int64_t dtype) { return chosen[type_of_tiles(dtype)]; }

static sk_unpack *unpack_of(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "avx2")) return sk_avx2_unpack;
    if (!strcmp(name, "avx512")) return sk_avx512_unpack;
#endif
    return sk_portable_unpack;
}

static sk_fused *fused_of(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "avx512")) return sk_avx512_fused;
#endif
    (void)name;
    return NULL;
}

static const sk_kernels *kernels_of(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "avx2")) return sk_avx2;
    if (!strcmp(name, "avx512")) return sk_avx512;
#endif
    return sk_portable;
}

int sk_linear_use(const char *name) {
    for (int64_t dtype = 0; dtype < SK_DTYPES; dtype++) chosen[dtype] = &sk_portable[dtype];
    chosen_unpack = sk_portable_unpack;
    chosen_fused = NULL;
    if (!lk_supports(name)) return -1;
    const sk_kernels *set = kernels_of(name);
    for (int64_t dtype = 0; dtype < SK_DTYPES; dtype++)
        if (!sk_linear_agrees(&set[dtype], dtype)) return -2;
    if (!sk_unpack_agrees(unpack_of(name))) return -2;
    sk_fused *fused = fused_of(name);
    if (fused && !sk_fused_agrees(fused, &set[SK_BF16])) return -2;
    chosen_unpack = unpack_of(name);
    chosen_fused = fused;
    for (int64_t dtype = 0; dtype < SK_DTYPES; dtype++) {
        chosen[dtype] = &set[dtype];
        bound_rows[dtype] = sk_linear_bound_rows(chosen[dtype], dtype);
    }
    return 0;
}

int64_t sk_linear_bound(int64_t dtype) { return bound_rows[dtype]; }

static int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/* So many bytes in whole cache lines, an odd number of them. */
static int64_t odd_lines(int64_t bytes) { return (round_up(bytes, 64) / 64 | 1) * 64; }

int64_t sk_linear_takes(int64_t dtype) { return chosen_for(dtype)->x_dtype; }

int64_t sk_linear_stride(int64_t k, int64_t x_dtype) {
    return odd_lines(k * lk_element_size(x_dtype)) / lk_element_size(x_dtype);
}

/* Bytes from one prepared row to the next. */
static int64_t prepared_stride(int64_t k, int64_t x_bytes) {
    return odd_lines((int64_t)sizeof(sk_row) + round_up(k, SK_BLOCK) / SK_BLOCK * x_bytes);
}

int64_t sk_linear_scratch(int64_t k, int64_t rows, int64_t threads) {
    int64_t held = rows > PRIVATE_ROWS * threads ? rows : PRIVATE_ROWS * threads;
    return held * prepared_stride(k, SK_BLOCK * (int64_t)sizeof(float));
}

int sk_linear_prepares(int64_t dtype) { return chosen_for(dtype)->prepare && chosen_for(dtype)->x_dtype == SK_F32; }

void sk_linear_prepare(const sk_linear *w, const float *x, int64_t row, void *scratch) {
    const sk_kernels *kernels = chosen_for(w->dtype);
    kernels->prepare(x, w->k, (char *)scratch + row * prepared_stride(w->k, kernels->x_bytes));
}

/* Sets the job's x. */
static void prepare_rows(sk_job *j, sk_rows x, void *scratch, sk_team *team) {
    int64_t k = j->w->k, thread = sk_thread(), threads = sk_threads();
    j->x.data = x.data;
    j->x.stride = x.stride * lk_element_size(x.dtype);
    if (!j->kernels->prepare || x.dtype != SK_F32) return;
    int private = j->rows <= PRIVATE_ROWS && !x.prepared;
    j->x.stride = prepared_stride(k, j->kernels->x_bytes);
    char *data = (char *)scratch + (private ? thread * PRIVATE_ROWS * j->x.stride : 0);
    j->x.data = data;
    if (x.prepared) return;
    for (int64_t row = private ? 0 : thread; row < j->rows; row += private ? 1 : threads)
        j->kernels->prepare((const float *)x.data + row * x.stride, k, data + row * j->x.stride);
    if (!private) sk_team_wait(team);
}

void sk_linear_team(const sk_linear *w, sk_rows x, int64_t rows, float *y, int64_t ldy, int accumulate,
                    sk_beside beside, void *scratch, sk_team *team) {
    const int64_t tiles = type_of_tiles(w->dtype);
    sk_job j = {
        .kernels = chosen[tiles], .w = w, .rows = rows, .y = y, .ldy = ldy, .accumulate = accumulate,
        .k = sk_padded(w->k, tiles), .turn = sk_turn(tiles), .turn_bytes = sk_turn_bytes(tiles),
        .panel_bytes = sk_panel_bytes(w->k, tiles), .beside = beside, .thread = sk_thread(),
    };
    if (w->dtype == SK_GROUPED) {
        j.unpack = chosen_unpack;
        j.fused = chosen_fused;
        j.panel_bytes = sk_grouped_panel_bytes(w->k, &w->groups);
        j.turn_bytes = j.panel_bytes * j.turn / w->k;
    }
    prepare_rows(&j, x, scratch, team);
    sk_job_run(&j, team);
}

int sk_linear_fetches(const sk_linear *w, int64_t rows) {
    return rows > chosen_for(w->dtype)->rows && rows > bound_rows[type_of_tiles(w->dtype)];
}

void sk_linear_run(const sk_linear *const *w, int64_t count, const float *x, int64_t ldx, int64_t rows, float *y,
                   int64_t ldy, int accumulate, void *scratch, int threads) {
    sk_team team;
    sk_team_start(&team, threads);
#pragma omp parallel num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        sk_linear_team(w[i], (sk_rows){x, ldx, SK_F32, 0}, rows, y, ldy, accumulate, (sk_beside){0}, scratch, &team);
        sk_team_wait(&team);
    }
}
