#include "extras.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

/* Columns of logits that a thread takes at once. */
enum { COLUMNS = 4096 };

static int64_t place_of(int64_t layer, const sk_product *p) { return layer * SK_SITES + p->site; }

static int changes(const sk_extras *e, int64_t place) { return e && (e->scales[place] || e->biases[place]); }

/* Hidden states that are put aside lie where a product with a norm after it would: nothing else is there. */
static float *aside(const sk_run *r, int64_t row) { return r->model->gate_up + row * r->model->hidden; }

void sk_set_aside(const sk_run *r, int64_t layer, const sk_product *p) {
    if (!p->accumulate) return;
    size_t bytes = (size_t)r->model->hidden * sizeof(float);
    sk_range mine;
    while ((mine = sk_team_take_home(r->team, omp_get_thread_num(), r->rows, 1)).begin < r->rows)
        for (int64_t row = mine.begin; row < mine.end; row++) {
            if (!changes(r->extras[row], place_of(layer, p))) continue;
            float *y = p->y + row * r->model->hidden;
            memcpy(aside(r, row), y, bytes);
            memset(y, 0, bytes);
        }
    sk_finish(r, SK_ADAPTERS);
}

static void finish_row(const sk_run *r, int64_t layer, const sk_product *p, int64_t row) {
    int64_t place = place_of(layer, p), n = r->model->layer[layer].linear[p->site].n;
    const float *scale = r->extras[row]->scales[place], *bias = r->extras[row]->biases[place];
    float *y = p->y + row * n;
    const float *before = aside(r, row);
    if (scale)
        for (int64_t i = 0; i < n; i++) y[i] *= scale[i];
    if (bias)
        for (int64_t i = 0; i < n; i++) y[i] += bias[i];
    if (p->accumulate)
        for (int64_t i = 0; i < n; i++) y[i] += before[i];
}

void sk_finish_extras(const sk_run *r, int64_t layer, const sk_product *p) {
    sk_range mine;
    while ((mine = sk_team_take_home(r->team, omp_get_thread_num(), r->rows, 1)).begin < r->rows)
        for (int64_t row = mine.begin; row < mine.end; row++)
            if (changes(r->extras[row], place_of(layer, p))) finish_row(r, layer, p, row);
    sk_finish(r, SK_ADAPTERS);
}

void sk_embed_extras(const sk_extras *e, int64_t token, int64_t hidden, float *embedding) {
    for (int64_t rank = 0; rank < e->embed_rank; rank++) {
        float v = e->embed_down[token * e->embed_rank + rank];
        const float *up = e->embed_up + rank * hidden;
        for (int64_t i = 0; i < hidden; i++) embedding[i] += v * up[i];
    }
    for (int64_t t = 0; t < e->embed_tokens; t++)
        if (e->embed_ids[t] == token) memcpy(embedding, e->embed_rows + t * hidden, (size_t)hidden * sizeof(float));
}

static float dot(const float *a, const float *b, int64_t n) {
    float parts[16] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int64_t lane = 0; lane < 16; lane++) parts[lane] += a[i + lane] * b[i + lane];
    for (; i < n; i++) sum += a[i] * b[i];
    for (int64_t lane = 0; lane < 16; lane++) sum += parts[lane];
    return sum;
}

/* Columns [begin, end) of one sample's logits; x: its final hidden state. */
static void head_columns(const sk_extras *e, const sk_model *m, const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t rank = 0; rank < e->head_rank; rank++) {
        float v = dot(x, e->head_down + rank * m->hidden, m->hidden);
        const float *up = e->head_up + rank * m->vocab;
        for (int64_t c = begin; c < end; c++) y[c] += v * up[c];
    }
    if (e->head_scale)
        for (int64_t c = begin; c < end; c++) y[c] *= e->head_scale[c];
    for (int64_t t = 0; t < e->head_tokens; t++)
        if (e->head_ids[t] >= begin && e->head_ids[t] < end)
            y[e->head_ids[t]] = dot(x, e->head_rows + t * m->hidden, m->hidden);
}

void sk_head_extras(const sk_run *r) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    int64_t blocks = (m->vocab + COLUMNS - 1) / COLUMNS, count = s->samples * blocks;
    sk_range mine;
    while ((mine = sk_team_take_home(r->team, omp_get_thread_num(), count, 1)).begin < count)
        for (int64_t at = mine.begin; at < mine.end; at++) {
            int64_t sample = at / blocks, begin = at % blocks * COLUMNS;
            int64_t end = begin + COLUMNS < m->vocab ? begin + COLUMNS : m->vocab;
            const sk_extras *e = s->wanted_extras[sample];
            if (e) head_columns(e, m, s->final + sample * m->hidden, begin, end, s->logits + sample * m->vocab);
        }
    sk_finish(r, SK_HEAD);
}
