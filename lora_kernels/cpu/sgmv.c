/* The library's functions: scratch, threads, and the two phases with a barrier after each. */
#include "sgmv.h"

#include <stdatomic.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

#include "places.h"
#include "work.h"

/* Below this cost (multiply-adds, weights included) a thread's share is worth less than waking it: swept from 2^14 to
 * 2^18 at 1 and 8 rows, where one thread took 4.5 us against two threads' 8 below it, and the same above. */
enum { COST_PER_THREAD = 262144 };
/* Scratch parts begin on cache lines: threads share none. */
enum { LINE = 64 };

/* The scratch of the last call, kept for the next: the system charges 0.5 us for every fresh 4 KiB. */
typedef struct {
    int64_t bytes;
    char data[];
} spare;
static _Atomic(spare *) kept;

/* Return the kept scratch if it is large enough and free, else a new one; NULL when memory is short. */
static spare *take_scratch(int64_t bytes) {
    spare *found = atomic_exchange(&kept, NULL);
    if (found && found->bytes >= bytes) return found;
    free(found);
    found = malloc(sizeof *found + (size_t)bytes);
    if (found) found->bytes = bytes;
    return found;
}

static void keep_scratch(spare *scratch) { free(atomic_exchange(&kept, scratch)); }

/* The ends of the parts of one thread's scratch, in order. */
typedef struct {
    int64_t b, packed, panel, wide;
} scratch_ends;

static scratch_ends thread_ends(const lk_site *site) {
    const int64_t size = sizeof(float);
    scratch_ends ends;
    ends.b = round_up(site->max_pages * (int64_t)sizeof(void *), LINE);
    ends.packed = ends.b + round_up(LK_SHRINK_ROWS * site->padded_k * size, LINE);
    ends.panel = ends.packed + site->max_pages * site->page_size * LK_CHUNK * size;
    ends.wide = ends.panel;
    if (site->dtype == LK_I8) ends.wide += round_up(LK_UNIT * site->padded_k * (int64_t)sizeof(uint16_t), LINE);
    return ends;
}

static lk_thread_scratch thread_part(const lk_site *site, char *scratch, int64_t thread) {
    scratch_ends ends = thread_ends(site);
    char *part = scratch + thread * ends.wide;
    return (lk_thread_scratch){(const void **)part, part + ends.b, (float *)(part + ends.packed), part + ends.panel};
}

static char *on_a_line(void *scratch) { return (char *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE); }

int64_t lk_scratch_bytes(const lk_site *site, int64_t rows, int threads) {
    int64_t v = rows * site->slices * site->max_pages * site->page_size * (int64_t)sizeof(float);
    return LINE + threads * thread_ends(site).wide + round_up(v, LINE);
}

/* One thread's part of a team's scratch; where v begins goes into the job. */
static lk_thread_scratch team_scratch(lk_job *j, void *scratch, int64_t thread, int64_t threads) {
    char *parts = on_a_line(scratch);
    j->v.data = (float *)(parts + threads * thread_ends(j->site).wide);
    j->v.slice_stride = j->site->max_pages * j->site->page_size;
    j->v.row_stride = j->site->slices * j->v.slice_stride;
    return thread_part(j->site, parts, thread);
}

static lk_job shrink_job(const lk_site *site, const lk_batch *batch, lk_rows x) {
    return (lk_job){.kernels = lk_chosen(x.dtype, site->dtype), .site = site, .batch = batch, .x = x};
}

static lk_job expand_job(const lk_site *site, const lk_batch *batch, lk_rows y) {
    return (lk_job){.kernels = lk_chosen(y.dtype, site->dtype), .site = site, .batch = batch, .y = y};
}

/* One phase, by one thread of a team. */
static void run_phase(lk_job *j, int phase, void *scratch, int64_t thread, int64_t threads) {
    lk_thread_scratch mine = team_scratch(j, scratch, thread, threads);
    lk_run_phase(j, phase, &mine, thread, threads);
}

void lk_shrink_team(const lk_site *site, const lk_batch *batch, const void *x, int64_t x_stride, int64_t x_dtype,
                    void *scratch, int64_t thread, int64_t threads) {
    lk_job j = shrink_job(site, batch, (lk_rows){(char *)x, x_stride, x_dtype});
    run_phase(&j, LK_SHRINK, scratch, thread, threads);
}

void lk_expand_team(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype,
                    void *scratch, int64_t thread, int64_t threads) {
    lk_job j = expand_job(site, batch, (lk_rows){y, y_stride, y_dtype});
    run_phase(&j, LK_EXPAND, scratch, thread, threads);
}

static int worthwhile_threads(const lk_job *j, int shrinks, int expands, int threads) {
    int64_t per_rank = shrinks * j->site->slices * j->site->k + expands * j->site->n;
    return (int)minimum(threads, 1 + lk_batch_cost(j, LK_EXPAND) * per_rank / COST_PER_THREAD);
}

static void apply_by(const lk_call *call, void *scratch, int64_t thread, int64_t threads) {
    const lk_rows *x = &call->x, *y = &call->y;
    lk_shrink_team(call->site, call->batch, x->data, x->stride, x->dtype, scratch, thread, threads);
    if (threads > 1) {
#pragma omp barrier
    }
    lk_expand_team(call->site, call->batch, y->data, y->stride, y->dtype, scratch, thread, threads);
}

int lk_apply(const lk_call *call) {
    const lk_batch *batch = call->batch;
    lk_job j = {.site = call->site, .batch = batch};
    int threads = worthwhile_threads(&j, 1, 1, (int)call->threads);
    spare *memory = take_scratch(lk_scratch_bytes(call->site, batch->segment_starts[batch->segments], threads));
    if (!memory) return -1;
    /* A team of one is not free either: 1.3 us. */
    if (threads == 1) {
        apply_by(call, memory->data, 0, 1);
    } else {
#pragma omp parallel num_threads(threads)
        apply_by(call, memory->data, omp_get_thread_num(), omp_get_num_threads());
    }
    keep_scratch(memory);
    return 0;
}

/* One half alone, v in the caller's memory. */
static int run_alone(const lk_job *j, int phase, int threads) {
    threads = worthwhile_threads(j, phase == LK_SHRINK, phase == LK_EXPAND, threads);
    spare *memory = take_scratch(lk_scratch_bytes(j->site, 0, threads));
    if (!memory) return -1;
#pragma omp parallel num_threads(threads)
    {
        int thread = omp_get_thread_num();
        lk_thread_scratch mine = thread_part(j->site, on_a_line(memory->data), thread);
        lk_run_phase(j, phase, &mine, thread, omp_get_num_threads());
    }
    keep_scratch(memory);
    return 0;
}

int lk_shrink(const lk_site *site, const lk_batch *batch, const void *x, int64_t x_stride, int64_t x_dtype, float *v,
              int64_t row_stride, int64_t slice_stride, int threads) {
    lk_job j = shrink_job(site, batch, (lk_rows){(char *)x, x_stride, x_dtype});
    j.v = (lk_v_rows){v, row_stride, slice_stride, 1};
    return run_alone(&j, LK_SHRINK, threads);
}

int lk_expand(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, int64_t y_dtype, float *v,
              int64_t row_stride, int64_t slice_stride, int threads) {
    lk_job j = expand_job(site, batch, (lk_rows){y, y_stride, y_dtype});
    j.v = (lk_v_rows){v, row_stride, slice_stride, 1};
    return run_alone(&j, LK_EXPAND, threads);
}
