/* One product of a step and what adapters add to it, timed. */
#define _POSIX_C_SOURCE 199309L
#include <time.h>

#include "extras.h"
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

void sk_start_clock(const sk_run *r) {
    if (r->step->times) r->step->times->since = clock_ns();
}

/* Count the time since the last call as spent on this part. */
static void spent_on(const sk_run *r, int part) {
    sk_times *times = r->step->times;
    if (!times || omp_get_thread_num()) return;
    int64_t now = clock_ns();
    times->ns[part] += now - times->since;
    times->since = now;
}

void sk_finish(const sk_run *r, int part) {
    spent_on(r, part);
    sk_team_wait(r->team);
    spent_on(r, SK_WAIT);
}

/* Pages of adapters that are fetched beside one product, at most: those of 64 adapters of rank 32 at three slices. */
enum { MOST_PAGES = 512 };

/* List the adapters' weights that this thread reads after the product: B of this site, A of the next. */
static int64_t list_pages(const sk_run *r, int64_t layer, int site, lk_strip *out) {
    const sk_model *m = r->model;
    int64_t thread = omp_get_thread_num(), threads = r->step->threads;
    int last = site + 1 == SK_SITES;
    int64_t count = lk_list_expand(m->layer[layer].lora[site], r->lora, thread, threads, out, MOST_PAGES);
    if (!last || layer + 1 < m->layers)
        count += lk_list_shrink(m->layer[layer + last].lora[last ? 0 : site + 1], r->lora, thread, threads, out + count,
                                MOST_PAGES - count);
    return count;
}

static void multiply(const sk_run *r, int64_t layer, const sk_product *p, sk_beside beside) {
    const sk_linear *w = &r->model->layer[layer].linear[p->site];
    sk_linear_team(w, *p->x, r->rows, p->y, w->n, p->accumulate, beside, r->linear_scratch, r->team);
    sk_finish(r, SK_PRODUCTS);
}

static void project_with_adapters(const sk_run *r, int64_t layer, const sk_product *p) {
    const sk_model *m = r->model;
    const sk_linear *w = &m->layer[layer].linear[p->site];
    const lk_site *site = m->layer[layer].lora[p->site];
    int64_t thread = omp_get_thread_num(), threads = r->step->threads;
    lk_strip pages[MOST_PAGES];
    sk_beside beside = {pages, 0};
    lk_shrink_team(site, r->lora, p->x->data, p->x->stride, p->x->dtype, m->lora_scratch, thread, threads);
    spent_on(r, SK_ADAPTERS);
    if (sk_linear_fetches(w, r->rows)) beside.count = list_pages(r, layer, p->site, pages);
    multiply(r, layer, p, beside);
    lk_expand_team(site, r->lora, p->y, w->n, SK_F32, m->lora_scratch, thread, threads);
    sk_finish(r, SK_ADAPTERS);
}

void sk_project(const sk_run *r, int64_t layer, const sk_product *p) {
    if (r->extras) sk_set_aside(r, layer, p);
    if (r->lora)
        project_with_adapters(r, layer, p);
    else
        multiply(r, layer, p, (sk_beside){0});
    if (r->extras) sk_finish_extras(r, layer, p);
}
