#define _POSIX_C_SOURCE 199309L
#include "forward_run.h"
#include "pack.h"

#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

/* Rows between two products cost about a microsecond each: taking fewer at once would cost as much. */
enum { LEAST_ROWS = 4 };

static const sk_ops *chosen = &sk_ops_portable;

int sk_forward_use(const char *name) {
    const sk_ops *found = NULL;
    chosen = &sk_ops_portable;
    if (!strcmp(name, "portable")) return 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!strcmp(name, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found = &sk_ops_avx2;
    if (!strcmp(name, "avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16"))
        found = &sk_ops_avx512;
#endif
    if (!found) return -1;
    if (!sk_ops_agree(found)) return -2;
    chosen = found;
    return 0;
}

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What was done since the last call was this. */
static void spent_on(const sk_run *r, int part) {
    sk_times *times = r->step->times;
    if (!times || omp_get_thread_num()) return;
    int64_t now = clock_ns();
    times->ns[part] += now - times->since;
    times->since = now;
}

/* Until every thread has done this part. */
static void finish(const sk_run *r, int part) {
    spent_on(r, part);
    sk_team_wait(r->team);
    spent_on(r, SK_WAIT);
}

static int64_t linear_bytes(const sk_model *m, int64_t threads) {
    int64_t k = m->intermediate > m->heads * m->head_dim ? m->intermediate : m->heads * m->head_dim;
    return sk_aligned(sk_linear_scratch(k > m->hidden ? k : m->hidden, m->max_rows, threads));
}

int64_t sk_scratch_bytes(const sk_model *m, int64_t threads) {
    return linear_bytes(m, threads) + sk_attention_bytes(m, threads);
}

static int valid(const sk_model *m, const sk_step *s) {
    if (s->rows < 1 || s->rows > m->max_rows || s->chunk_rows[0] != 0 || s->chunk_rows[s->chunks] != s->rows) return 0;
    for (int64_t i = 0; i < s->rows; i++)
        if (s->token_ids[i] < 0 || s->token_ids[i] >= m->vocab) return 0;
    for (int64_t c = 0; c < s->chunks; c++) {
        int64_t count = s->chunk_rows[c + 1] - s->chunk_rows[c], end = s->chunk_starts[c] + count;
        if (count < 1 || s->chunk_starts[c] < 0 || end > m->max_positions) return 0;
        const int32_t *table = s->blocks + s->chunk_tables[c];
        for (int64_t b = 0; b * m->block_size < end; b++)
            if (table[b] < 0 || table[b] >= m->num_blocks) return 0;
    }
    for (int64_t i = 0; i < s->samples + s->embeds; i++)
        if (s->sample_rows[i] < 0 || s->sample_rows[i] >= s->rows) return 0;
    return 1;
}

/* What every row needs between two products: by whichever threads come first. */
static void each_row(const sk_run *r, int64_t rows, void (*work)(const sk_run *r, int64_t layer, int64_t row),
                     int64_t layer) {
    sk_range mine;
    while ((mine = sk_team_take(r->team, rows, LEAST_ROWS, rows)).begin < rows)
        for (int64_t row = mine.begin; row < mine.end; row++) work(r, layer, row);
    finish(r, SK_ROWS);
}

static void *row_of(const sk_rows *rows, int64_t row) {
    return (char *)rows->data + row * rows->stride * sk_element_size(rows->dtype);
}

static void norm(const sk_run *r, const float *weight, int64_t row, void *out, int64_t dtype) {
    const sk_model *m = r->model;
    r->ops->rms_norm(m->residual + row * m->hidden, weight, m->eps, m->hidden, out, dtype);
}

static void norm_input(const sk_run *r, int64_t layer, int64_t row) {
    norm(r, r->model->layer[layer].input_norm, row, row_of(&r->normed, row), r->normed.dtype);
}

static void norm_attended(const sk_run *r, int64_t layer, int64_t row) {
    norm(r, r->model->layer[layer].post_norm, row, row_of(&r->normed, row), r->normed.dtype);
}

/* Where y stays whole. */
static void activate(const sk_run *r, int64_t layer, int64_t row) {
    (void)layer;
    const sk_model *m = r->model;
    const float *gate = m->gate_up + row * 2 * m->intermediate;
    r->ops->silu_mul(gate, gate + m->intermediate, m->intermediate, row_of(&r->activated, row), r->activated.dtype);
}

/* Pages of adapters that are fetched beside one product, at most: those of 64 adapters of rank 32 at three slices. */
enum { MOST_PAGES = 512 };

/* What the adapters of a site add to its product, as one thread sees it. */
typedef struct {
    const sk_run *r;
    int64_t layer;
    int site, by_part;
    int64_t n;             /* columns of the site */
    sk_strip *beside;      /* [MOST_PAGES]: what this thread reads after the product */
    int64_t count, bytes;  /* of `beside`; count is -1 until it is asked for */
    int64_t listed;        /* of its bytes */
} adapters;

static const void *lora_of(const adapters *a) { return a->r->model->layer[a->layer].lora[a->site]; }

static void add_adapters(void *context, const sk_part *part, float *y, int64_t ldy) {
    const adapters *a = context;
    const sk_model *m = a->r->model;
    const sk_step *s = a->r->step;
    spent_on(a->r, SK_PRODUCTS);
    m->lora.expand_part(lora_of(a), s->lora, y, ldy, SK_F32, m->lora_scratch, omp_get_thread_num(), s->threads, part);
    spent_on(a->r, SK_ADAPTERS);
}

/* Of the next site the first half, and of this one the second, unless that is done by parts. */
static void list_beside(adapters *a) {
    const sk_model *m = a->r->model;
    const sk_step *s = a->r->step;
    int64_t thread = omp_get_thread_num();
    int last = a->site + 1 == SK_SITES;
    a->count = a->by_part ? 0 : m->lora.list_expand(lora_of(a), s->lora, thread, s->threads, a->beside, MOST_PAGES);
    if (!last || a->layer + 1 < m->layers)
        a->count += m->lora.list_shrink(m->layer[a->layer + last].lora[last ? 0 : a->site + 1], s->lora, thread,
                                        s->threads, a->beside + a->count, MOST_PAGES - a->count);
    a->bytes = a->listed = 0;
    for (int64_t i = 0; i < a->count; i++) a->bytes += a->beside[i].bytes;
}

/* What is added to this part, and of what the thread reads after the product as much as the part is of its share. */
static int64_t list_adapters(void *context, const sk_part *part, sk_strip *out, int64_t most) {
    adapters *a = context;
    const sk_step *s = a->r->step;
    if (a->count < 0) list_beside(a);
    int64_t count = a->by_part ? a->r->model->lora.list_part(lora_of(a), s->lora, part, out, most) : 0;
    int64_t values = (part->row_end - part->row) * (part->column_end - part->column);
    int64_t begin = a->listed, end = begin + a->bytes * s->threads * values / (s->rows * a->n) + 1;
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

/* y (+)= x W^T, or, gated, what the gate makes of it. */
typedef struct {
    int site;
    const sk_rows *x;
    float *y;
    int accumulate;
    const sk_gate *gate;
} product;

/* Complete on return. */
static void multiply(const sk_run *r, int64_t layer, const product *p, sk_addend addend) {
    const sk_linear *w = &r->model->layer[layer].linear[p->site];
    int64_t rows = r->step->rows;
    if (p->gate)
        sk_linear_gate_team(w, *p->x, rows, p->gate, addend, r->linear_scratch, r->team);
    else
        sk_linear_team(w, *p->x, rows, p->y, w->n, p->accumulate, addend, r->linear_scratch, r->team);
    finish(r, SK_PRODUCTS);
}

static int by_parts(const sk_run *r) { return r->model->lora.prefers_parts(r->step->lora); }

/* The same plus the adapters' share. */
static void project_with_adapters(const sk_run *r, int64_t layer, const product *p) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    const sk_linear *w = &m->layer[layer].linear[p->site];
    sk_strip beside[MOST_PAGES];
    adapters a = {r, layer, p->site, by_parts(r), w->n, beside, -1, 0, 0};
    m->lora.shrink_team(lora_of(&a), s->lora, p->x->data, p->x->stride, p->x->dtype, m->lora_scratch, omp_get_thread_num(),
                        s->threads);
    if (a.by_part)
        finish(r, SK_ADAPTERS);
    else
        spent_on(r, SK_ADAPTERS);
    multiply(r, layer, p, (sk_addend){a.by_part ? add_adapters : NULL, list_adapters, &a});
    if (a.by_part) return;
    m->lora.expand_team(lora_of(&a), s->lora, p->y, w->n, SK_F32, m->lora_scratch, omp_get_thread_num(), s->threads);
    finish(r, SK_ADAPTERS);
}

static void project(const sk_run *r, int64_t layer, const product *p) {
    if (r->step->lora)
        project_with_adapters(r, layer, p);
    else
        multiply(r, layer, p, (sk_addend){0});
}

/* Adapters that are added to all of y need all of it. */
static void project_activated(const sk_run *r, int64_t layer) {
    const sk_model *m = r->model;
    const sk_gate gate = {r->ops->silu_mul, (void *)r->activated.data, r->activated.stride, r->activated.dtype};
    int gated = sk_linear_has_halves(&m->layer[layer].linear[SK_GATE_UP]) && (!r->step->lora || by_parts(r));
    project(r, layer, &(product){SK_GATE_UP, &r->normed, m->gate_up, 0, gated ? &gate : NULL});
    if (!gated) each_row(r, r->step->rows, activate, layer);
}

static void run_layer(const sk_run *r, int64_t layer) {
    const sk_model *m = r->model;
    int64_t rows = r->step->rows;
    each_row(r, rows, norm_input, layer);
    project(r, layer, &(product){SK_QKV, &r->normed, m->qkv, 0, NULL});
    each_row(r, rows, sk_place_row, layer);
    sk_attend_rows(r, layer, omp_get_thread_num());
    finish(r, SK_ATTENTION);
    project(r, layer, &(product){SK_O, &r->attended, m->residual, 1, NULL});
    each_row(r, rows, norm_attended, layer);
    project_activated(r, layer);
    project(r, layer, &(product){SK_DOWN, &r->activated, m->residual, 1, NULL});
}

static void embed(const sk_run *r, int64_t layer, int64_t row) {
    (void)layer;
    const sk_model *m = r->model;
    int64_t token = r->step->token_ids[row];
    float *out = m->residual + row * m->hidden;
    if (m->embed)
        r->ops->widen((const char *)m->embed + token * m->hidden * sk_element_size(m->embed_dtype), m->embed_dtype,
                      m->hidden, out);
    else
        sk_unpack_row(&m->head, token, out);
}

static void norm_sampled(const sk_run *r, int64_t layer, int64_t sample) {
    (void)layer;
    norm(r, r->model->norm, r->step->sample_rows[sample], r->step->final + sample * r->model->hidden, SK_F32);
}

static void choose(const sk_run *r, int64_t layer, int64_t sample) {
    (void)layer;
    int64_t vocab = r->model->vocab;
    r->step->best[sample] = (int32_t)r->ops->argmax(r->step->logits + sample * vocab, vocab);
}

static void run_head(const sk_run *r) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    each_row(r, s->samples + s->embeds, norm_sampled, 0);
    if (!s->samples) return;
    sk_linear_team(&m->head, (sk_rows){s->final, m->hidden, SK_F32}, s->samples, s->logits, m->vocab, 0, (sk_addend){0}, r->linear_scratch,
                   r->team);
    finish(r, SK_HEAD);
    each_row(r, s->samples, choose, 0);
}

/* x as the products of this weight like it best. */
static sk_rows rows_for(const sk_linear *w, void *data) {
    int64_t dtype = sk_linear_takes(w->dtype);
    return (sk_rows){data, sk_linear_stride(w->k, dtype), dtype};
}

int sk_forward(const sk_model *m, const sk_step *s) {
    if (!valid(m, s)) return -1;
    sk_team team;
    sk_team_start(&team, (int)s->threads);
    sk_run r = {
        .ops = chosen, .model = m, .step = s, .team = &team, .linear_scratch = m->scratch,
        .normed = rows_for(&m->layer->linear[SK_QKV], m->normed), .attended = rows_for(&m->layer->linear[SK_O], m->attended),
        .activated = rows_for(&m->layer->linear[SK_DOWN], m->activated),
    };
    sk_list_attention(&r, (char *)m->scratch + linear_bytes(m, s->threads));
    if (s->times) s->times->since = clock_ns();
#pragma omp parallel num_threads((int)s->threads)
    {
        each_row(&r, s->rows, embed, 0);
        for (int64_t layer = 0; layer < m->layers; layer++) run_layer(&r, layer);
        run_head(&r);
    }
    return 0;
}
