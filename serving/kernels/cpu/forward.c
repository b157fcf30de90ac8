#include "extras.h"
#include "pack.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

/* Rows between two products cost about a microsecond each: taking fewer at once would cost as much. */
enum { LEAST_ROWS = 4 };

static const sk_ops *chosen = &sk_ops_portable;

int sk_forward_use(const char *name) {
    chosen = &sk_ops_portable;
    if (!lk_supports(name)) return -1;
    const sk_ops *found = chosen;
#if defined(__x86_64__)
    if (!strcmp(name, "avx2")) found = &sk_ops_avx2;
    if (!strcmp(name, "avx512")) found = &sk_ops_avx512;
#endif
    if (!sk_ops_agree(found)) return -2;
    chosen = found;
    return 0;
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
    if (s->trims && s->samples + s->embeds > s->rows) return 0;
    for (int64_t i = 0; i < s->samples + s->embeds; i++)
        if (s->sample_rows[i] < 0 || s->sample_rows[i] >= s->rows) return 0;
    return 1;
}

/* Do for every row what it needs between two products, on the thread that had the row before unless another is
 * sooner. */
static void each_row(const sk_run *r, int64_t rows, void (*work)(const sk_run *r, int64_t layer, int64_t row),
                     int64_t layer) {
    sk_range mine;
    while ((mine = sk_team_take_home(r->team, omp_get_thread_num(), rows, LEAST_ROWS)).begin < rows)
        for (int64_t row = mine.begin; row < mine.end; row++) work(r, layer, row);
    sk_finish(r, SK_ROWS);
}

static void norm(const sk_run *r, const float *weight, int64_t row, void *out, int64_t dtype) {
    const sk_model *m = r->model;
    r->ops->rms_norm(r->residual + row * m->hidden, weight, m->eps, m->hidden, out, dtype);
}

/* Norm a row into the form that the next product takes. */
static void norm_for(const sk_run *r, const float *weight, int64_t row, const sk_linear *w) {
    void *out = sk_row_of(&r->normed, row);
    norm(r, weight, row, out, r->normed.dtype);
    if (r->normed.prepared) sk_linear_prepare(w, out, row, r->linear_scratch);
}

static void norm_input(const sk_run *r, int64_t index, int64_t row) {
    const sk_layer *layer = &r->model->layer[index];
    norm_for(r, layer->input_norm, row, &layer->linear[SK_QKV]);
}

/* Norm a row of what attention or the MLP gave, and add it. */
static void add_normed(const sk_run *r, const float *weight, int64_t row) {
    const sk_model *m = r->model;
    float *from = m->gate_up + row * m->hidden, *to = r->residual + row * m->hidden;
    r->ops->rms_norm(from, weight, m->eps, m->hidden, from, SK_F32);
    for (int64_t i = 0; i < m->hidden; i++) to[i] += from[i];
}

static void add_fed(const sk_run *r, int64_t index, int64_t row) { add_normed(r, r->model->layer[index].fed_norm, row); }

static void norm_attended(const sk_run *r, int64_t index, int64_t row) {
    const sk_layer *layer = &r->model->layer[index];
    if (layer->attended_norm) add_normed(r, layer->attended_norm, row);
    norm_for(r, layer->post_norm, row, &layer->linear[SK_GATE_UP]);
}

static void activate(const sk_run *r, int64_t layer, int64_t row) {
    const sk_model *m = r->model;
    const float *gate = m->gate_up + row * 2 * m->intermediate;
    void *out = sk_row_of(&r->activated, row);
    (m->gelu ? r->ops->gelu_mul : r->ops->silu_mul)(gate, gate + m->intermediate, m->intermediate, out,
                                                    r->activated.dtype);
    if (r->activated.prepared) sk_linear_prepare(&m->layer[layer].linear[SK_DOWN], out, row, r->linear_scratch);
}

static void gather(const sk_run *wanted, int64_t layer, int64_t sample) {
    (void)layer;
    const sk_model *m = wanted->model;
    memcpy(wanted->residual + sample * m->hidden, m->residual + wanted->step->sample_rows[sample] * m->hidden,
           (size_t)m->hidden * sizeof(float));
}

/* A product that is added to the hidden states; with a norm after it, `add_normed` adds it. */
static void project_onto(const sk_run *r, int64_t layer, int site, const sk_rows *x, const float *norm_after) {
    sk_project(r, layer, &(sk_product){site, x, norm_after ? r->model->gate_up : r->residual, !norm_after});
}

/* `wanted`: the rows whose hidden states are computed; of the others keys and values are all that is needed. */
static void run_layer(const sk_run *r, const sk_run *wanted, int64_t layer) {
    const sk_model *m = r->model;
    each_row(r, r->rows, norm_input, layer);
    sk_project(r, layer, &(sk_product){SK_QKV, &r->normed, m->qkv, 0});
    each_row(r, r->rows, sk_place_row, layer);
    if (!wanted->rows) return;
    if (wanted != r) each_row(wanted, wanted->rows, gather, layer);
    r = wanted;
    sk_attend_rows(r, layer, omp_get_thread_num());
    sk_finish(r, SK_ATTENTION);
    project_onto(r, layer, SK_O, &r->attended, m->layer[layer].attended_norm);
    each_row(r, r->rows, norm_attended, layer);
    sk_project(r, layer, &(sk_product){SK_GATE_UP, &r->normed, m->gate_up, 0});
    each_row(r, r->rows, activate, layer);
    project_onto(r, layer, SK_DOWN, &r->activated, m->layer[layer].fed_norm);
    if (m->layer[layer].fed_norm) each_row(r, r->rows, add_fed, layer);
}

static void embed(const sk_run *r, int64_t layer, int64_t row) {
    (void)layer;
    const sk_model *m = r->model;
    int64_t token = r->step->token_ids[row];
    float *out = m->residual + row * m->hidden;
    if (m->embed)
        r->ops->widen((const char *)m->embed + token * m->hidden * lk_element_size(m->embed_dtype), m->embed_dtype,
                      m->hidden, out);
    else
        sk_unpack_row(&m->head, token, out);
    if (r->extras && r->extras[row]) sk_embed_extras(r->extras[row], token, m->hidden, out);
    if (m->embed_scale != 1.0f)
        for (int64_t i = 0; i < m->hidden; i++) out[i] *= m->embed_scale;
}

static void norm_sampled(const sk_run *r, int64_t layer, int64_t sample) {
    (void)layer;
    int64_t row = r->step->trims ? sample : r->step->sample_rows[sample];
    norm(r, r->model->norm, row, r->step->final + sample * r->model->hidden, SK_F32);
}

static void choose(const sk_run *r, int64_t layer, int64_t sample) {
    (void)layer;
    int64_t vocab = r->model->vocab;
    float *logits = r->step->logits + sample * vocab;
    if (r->model->logit_cap != 0.0f) r->ops->soft_cap(logits, r->model->logit_cap, vocab);
    r->step->best[sample] = (int32_t)r->ops->argmax(logits, vocab);
}

static void run_head(const sk_run *r) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    each_row(r, s->samples + s->embeds, norm_sampled, 0);
    if (!s->samples) return;
    sk_rows x = {s->final, m->hidden, SK_F32, 0};
    sk_linear_team(&m->head, x, s->samples, s->logits, m->vocab, 0, (sk_beside){0}, r->linear_scratch, r->team);
    sk_finish(r, SK_HEAD);
    if (s->extras) sk_head_extras(r);
    each_row(r, s->samples, choose, 0);
}

/* x as the products of this weight like it best. */
static sk_rows rows_for(const sk_linear *w, void *data) {
    int64_t dtype = sk_linear_takes(w->dtype);
    return (sk_rows){data, sk_linear_stride(w->k, dtype), dtype, 0};
}

int sk_forward(const sk_model *m, const sk_step *s) {
    if (!valid(m, s)) return -1;
    sk_team team;
    sk_team_start(&team, (int)s->threads);
    sk_run all = {
        .ops = chosen, .model = m, .step = s, .team = &team, .rows = s->rows, .lora = s->lora, .extras = s->extras,
        .residual = m->residual, .linear_scratch = m->scratch, .normed = rows_for(&m->layer->linear[SK_QKV], m->normed),
        .attended = rows_for(&m->layer->linear[SK_O], m->attended),
        .activated = rows_for(&m->layer->linear[SK_DOWN], m->activated),
    };
    all.normed.prepared = sk_linear_prepares(m->layer->linear[SK_QKV].dtype);
    all.activated.prepared = sk_linear_prepares(m->layer->linear[SK_DOWN].dtype);
    sk_run trimmed = all, *wanted = s->trims ? &trimmed : &all;
    if (s->trims) {
        trimmed.rows = s->samples + s->embeds;
        trimmed.lora = s->wanted_lora;
        trimmed.extras = s->extras ? s->wanted_extras : 0;
        trimmed.residual = s->final;
    }
    sk_list_attention(&all, wanted, (char *)m->scratch + linear_bytes(m, s->threads));
    sk_start_clock(&all);
#pragma omp parallel num_threads((int)s->threads)
    {
        each_row(&all, s->rows, embed, 0);
        for (int64_t layer = 0; layer < m->layers; layer++)
            run_layer(&all, layer + 1 < m->layers ? &all : wanted, layer);
        run_head(wanted);
    }
    return 0;
}
