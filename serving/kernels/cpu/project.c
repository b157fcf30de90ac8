/* One product of a step and what adapters add to it, timed. */
#define _POSIX_C_SOURCE 199309L
#include <time.h>

#include "forward_run.h"
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

/* What was done since the last call was this. */
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

/* What the adapters of a site add to its product, as one thread sees it: afterwards, where y becomes a whole, from weights
 * that are read in their order; to gated products part by part. */
typedef struct {
    const sk_run *r;
    int64_t layer;
    const sk_product *p;
    int64_t n;             /* columns of the site */
    sk_strip *beside;      /* [MOST_PAGES]: what this thread reads after the product */
    int64_t count, bytes;  /* of `beside`; count is -1 until it is asked for */
    int64_t listed;        /* of its bytes */
} adapters;

static const void *lora_of(const adapters *a) { return a->r->model->layer[a->layer].lora[a->p->site]; }

static void add_adapters(void *context, const sk_part *part, float *y, int64_t ldy) {
    const adapters *a = context;
    const sk_model *m = a->r->model;
    const sk_step *s = a->r->step;
    spent_on(a->r, SK_PRODUCTS);
    m->lora.expand_part(lora_of(a), a->r->lora, y, ldy, SK_F32, m->lora_scratch, omp_get_thread_num(), s->threads,
                        part);
    spent_on(a->r, SK_ADAPTERS);
}

/* Of this site what is added to the whole of y, of the next what comes before its product. */
static void list_beside(adapters *a) {
    const sk_run *r = a->r;
    const sk_model *m = r->model;
    int64_t thread = omp_get_thread_num(), threads = r->step->threads;
    int site = a->p->site, last = site + 1 == SK_SITES;
    a->count = 0;
    if (!a->p->gate) a->count = m->lora.list_expand(lora_of(a), r->lora, thread, threads, a->beside, MOST_PAGES);
    if (!last || a->layer + 1 < m->layers)
        a->count += m->lora.list_shrink(m->layer[a->layer + last].lora[last ? 0 : site + 1], r->lora, thread,
                                        threads, a->beside + a->count, MOST_PAGES - a->count);
    a->bytes = a->listed = 0;
    for (int64_t i = 0; i < a->count; i++) a->bytes += a->beside[i].bytes;
}

/* What is added to this part, and of what the thread reads after the product as much as the part is of its share. */
static int64_t list_adapters(void *context, const sk_part *part, sk_strip *out, int64_t most) {
    adapters *a = context;
    const sk_run *r = a->r;
    if (a->count < 0) list_beside(a);
    int64_t count = a->p->gate ? r->model->lora.list_part(lora_of(a), r->lora, part, out, most) : 0;
    int64_t values = (part->row_end - part->row) * (part->column_end - part->column);
    int64_t begin = a->listed, end = begin + a->bytes * r->step->threads * values / (r->rows * a->n) + 1;
    a->listed = end;
    for (int64_t i = 0; i < a->count && begin < end && count < most; i++) {
        const sk_strip *page = &a->beside[i];
        if (begin < page->bytes) {
            int64_t upto = end < page->bytes ? end : page->bytes;
            out[count++] = (sk_strip){page->data + begin, upto - begin};
            begin = upto;
        }
        begin -= page->bytes;
        end -= page->bytes;
    }
    return count;
}

/* Complete on return. */
static void multiply(const sk_run *r, int64_t layer, const sk_product *p, sk_addend addend) {
    const sk_linear *w = &r->model->layer[layer].linear[p->site];
    if (p->gate)
        sk_linear_gate_team(w, *p->x, r->rows, p->gate, addend, r->linear_scratch, r->team);
    else
        sk_linear_team(w, *p->x, r->rows, p->y, w->n, p->accumulate, addend, r->linear_scratch, r->team);
    sk_finish(r, SK_PRODUCTS);
}

/* The same plus the adapters' share. */
static void project_with_adapters(const sk_run *r, int64_t layer, const sk_product *p) {
    const sk_model *m = r->model;
    int64_t thread = omp_get_thread_num(), threads = r->step->threads;
    sk_strip beside[MOST_PAGES];
    adapters a = {r, layer, p, m->layer[layer].linear[p->site].n, beside, -1, 0, 0};
    m->lora.shrink_team(lora_of(&a), r->lora, p->x->data, p->x->stride, p->x->dtype, m->lora_scratch, thread,
                        threads);
    if (p->gate)
        sk_finish(r, SK_ADAPTERS);
    else
        spent_on(r, SK_ADAPTERS);
    multiply(r, layer, p, (sk_addend){p->gate ? add_adapters : NULL, list_adapters, &a});
    if (p->gate) return;
    m->lora.expand_team(lora_of(&a), r->lora, p->y, a.n, SK_F32, m->lora_scratch, thread, threads);
    sk_finish(r, SK_ADAPTERS);
}

void sk_project(const sk_run *r, int64_t layer, const sk_product *p) {
    if (r->lora)
        project_with_adapters(r, layer, p);
    else
        multiply(r, layer, p, (sk_addend){0});
}
