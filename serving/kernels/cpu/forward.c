#include "forward.h"

#include <math.h>
#include <stddef.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

/* With so many sequences a thread, a thread attends all heads of one. */
enum { TASKS_PER_THREAD = 4 };

static const sk_ops *ops = &sk_ops_portable;

int sk_forward_use(const char *name) {
    const sk_ops *found = NULL;
    ops = &sk_ops_portable;
    if (!strcmp(name, "portable")) return 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!strcmp(name, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found = &sk_ops_avx2;
    if (!strcmp(name, "avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        found = &sk_ops_avx512;
#endif
    if (!found) return -1;
    if (!sk_ops_agree(found)) return -2;
    ops = found;
    return 0;
}

/* A thread's share of the work between two barriers: rows, by count. */
typedef struct {
    int64_t begin, end;
} range;

static range share(int64_t count) {
    int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    return (range){count * me / team, count * (me + 1) / team};
}

/* Query positions of one chunk and some of its KV heads, attended by one thread. */
typedef struct {
    int32_t chunk, first, count;  /* first: within the chunk */
    int32_t kv_head, kv_heads;
} task;

typedef struct {
    const sk_model *model;
    const sk_step *step;
    task *tasks;
    int64_t task_count;
    char *linear_scratch;
    float *attend_scratch;
    int64_t attend_floats;  /* of one thread */
} run;

static int64_t group_heads(const sk_model *m) { return m->heads / m->kv_heads; }

static int64_t task_queries(const sk_model *m) {
    int64_t queries = SK_QUERY_ROWS / group_heads(m);
    return queries ? queries : 1;
}

static sk_blocks layer_blocks(const sk_model *m, int64_t layer, int64_t kv_head) {
    sk_blocks b = {m->kv, 0, m->block_size, sk_padded(m->block_size), m->head_dim, sk_padded(m->head_dim), m->kv_dtype};
    b.stride = m->kv_heads * sk_head_elements(&b);
    b.data += (layer * m->num_blocks * b.stride + kv_head * sk_head_elements(&b)) * sk_element_size(b.dtype);
    return b;
}

static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t linear_bytes(const sk_model *m, int64_t threads) {
    int64_t k = m->intermediate > m->heads * m->head_dim ? m->intermediate : m->heads * m->head_dim;
    return aligned(sk_linear_scratch(k > m->hidden ? k : m->hidden, m->max_rows, threads));
}

static int64_t task_bytes(const sk_model *m) { return aligned(m->max_rows * m->kv_heads * (int64_t)sizeof(task)); }

static int64_t attend_floats(const sk_model *m) {
    sk_blocks blocks = layer_blocks(m, 0, 0);
    return aligned(4 * sk_attend_floats(&blocks, task_queries(m) * group_heads(m))) / 4;
}

int64_t sk_scratch_bytes(const sk_model *m, int64_t threads) {
    return linear_bytes(m, threads) + task_bytes(m) + threads * attend_floats(m) * 4;
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

/* Long tasks first, so that threads end together: later positions see more keys. All heads of a sequence make one task
 * where there are enough sequences: their keys lie side by side. */
static void list_tasks(run *r) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    int64_t queries = task_queries(m), count = 0, blocks = 0;
    int64_t heads = s->chunks >= TASKS_PER_THREAD * s->threads ? m->kv_heads : 1;
    for (int64_t c = 0; c < s->chunks; c++) {
        int64_t of_chunk = (s->chunk_rows[c + 1] - s->chunk_rows[c] + queries - 1) / queries;
        if (of_chunk > blocks) blocks = of_chunk;
    }
    for (int64_t block = blocks - 1; block >= 0; block--)
        for (int64_t c = 0; c < s->chunks; c++) {
            int64_t first = block * queries, rest = s->chunk_rows[c + 1] - s->chunk_rows[c] - first;
            for (int64_t h = 0; rest > 0 && h < m->kv_heads; h += heads)
                r->tasks[count++] = (task){(int32_t)c, (int32_t)first, (int32_t)(rest < queries ? rest : queries),
                                           (int32_t)h, (int32_t)heads};
        }
    r->task_count = count;
}

static void norm_rows(const sk_model *m, int64_t rows, const float *weight) {
    range mine = share(rows);
    for (int64_t i = mine.begin; i < mine.end; i++)
        ops->rms_norm(m->residual + i * m->hidden, weight, m->eps, m->hidden, m->normed + i * m->hidden);
}

static void store_kv(const sk_model *m, int64_t layer, int32_t block, int64_t at, int64_t head, const float *k,
                     const float *v) {
    sk_blocks b = layer_blocks(m, layer, head);
    int64_t element = sk_element_size(b.dtype);
    char *keys = b.data + (block * b.stride + at) * element;
    char *values = b.data + (block * b.stride + sk_head_keys(&b) + at * b.padded) * element;
    if (b.dtype == SK_BF16) {
        for (int64_t d = 0; d < b.head_dim; d++) ((uint16_t *)keys)[d * b.lanes] = sk_to_bf16(k[d]);
        for (int64_t d = 0; d < b.head_dim; d++) ((uint16_t *)values)[d] = sk_to_bf16(v[d]);
    } else {
        for (int64_t d = 0; d < b.head_dim; d++) ((float *)keys)[d * b.lanes] = k[d];
        memcpy(values, v, (size_t)b.head_dim * sizeof(float));
    }
}

/* Bias, norm and rotation of one row's queries and keys; keys and values go to the cache. */
static void place_row(const sk_model *m, const sk_layer *layer, int64_t index, float *row, int64_t position,
                      int32_t block) {
    int64_t dim = m->head_dim, half = dim / 2, rotated = m->heads + m->kv_heads;
    const float *cos = m->rope + position * dim, *sin = cos + half;
    if (layer->qkv_bias)
        for (int64_t i = 0; i < (rotated + m->kv_heads) * dim; i++) row[i] += layer->qkv_bias[i];
    for (int64_t h = 0; h < rotated; h++) {
        const float *norm = h < m->heads ? layer->q_norm : layer->k_norm;
        if (norm) ops->rms_norm(row + h * dim, norm, m->eps, dim, row + h * dim);
        ops->rotate(row + h * dim, cos, sin, half);
    }
    for (int64_t h = 0; h < m->kv_heads; h++)
        store_kv(m, index, block, position % m->block_size, h, row + (m->heads + h) * dim, row + (rotated + h) * dim);
}

static void place_rows(const run *r, int64_t index) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    int64_t width = (m->heads + 2 * m->kv_heads) * m->head_dim, chunk = 0;
    range mine = share(s->rows);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        while (i >= s->chunk_rows[chunk + 1]) chunk++;
        int64_t position = s->chunk_starts[chunk] + i - s->chunk_rows[chunk];
        int32_t block = s->blocks[s->chunk_tables[chunk] + position / m->block_size];
        place_row(m, &m->layer[index], index, m->qkv + i * width, position, block);
    }
}

static void attend_rows(const run *r, int64_t layer) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    int64_t dim = m->head_dim, group = group_heads(m), width = (m->heads + 2 * m->kv_heads) * dim;
    float scale = 1.0f / sqrtf((float)dim);
    float *scratch = r->attend_scratch + omp_get_thread_num() * r->attend_floats;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < r->task_count; i++) {
        task t = r->tasks[i];
        int64_t row = s->chunk_rows[t.chunk] + t.first, last = t.kv_head + t.kv_heads - 1;
        for (int64_t h = t.kv_head; h <= last; h++) {
            sk_blocks blocks = layer_blocks(m, layer, h);
            sk_span span = {m->qkv + row * width + h * group * dim, m->attended + (row * m->heads + h * group) * dim,
                            width, m->heads * dim, t.count, group, s->chunk_starts[t.chunk] + t.first,
                            s->blocks + s->chunk_tables[t.chunk], scale, h < last};
            ops->attend(&span, &blocks, scratch);
        }
    }
}

static void activate_rows(const sk_model *m, int64_t rows) {
    range mine = share(rows);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const float *gate = m->gate_up + i * 2 * m->intermediate;
        ops->silu_mul(gate, gate + m->intermediate, m->intermediate, m->activated + i * m->intermediate);
    }
}

/* y (+)= x W^T plus the adapters' share, complete on return. */
static void project(const run *r, int64_t layer, int site, const float *x, float *y, int accumulate) {
    const sk_model *m = r->model;
    const sk_linear *w = &m->layer[layer].linear[site];
    sk_linear_team(w, x, w->k, r->step->rows, y, w->n, accumulate, r->linear_scratch);
#pragma omp barrier
    if (r->step->lora)
        m->lora_apply(m->layer[layer].lora[site], r->step->lora, y, w->n, SK_F32, x, w->k, SK_F32, m->lora_scratch);
}

static void run_layer(const run *r, int64_t index) {
    const sk_model *m = r->model;
    const sk_layer *layer = &m->layer[index];
    int64_t rows = r->step->rows;
    norm_rows(m, rows, layer->input_norm);
#pragma omp barrier
    project(r, index, SK_QKV, m->normed, m->qkv, 0);
    place_rows(r, index);
#pragma omp barrier
    attend_rows(r, index);
#pragma omp barrier
    project(r, index, SK_O, m->attended, m->residual, 1);
    norm_rows(m, rows, layer->post_norm);
#pragma omp barrier
    project(r, index, SK_GATE_UP, m->normed, m->gate_up, 0);
    activate_rows(m, rows);
#pragma omp barrier
    project(r, index, SK_DOWN, m->activated, m->residual, 1);
}

static void embed_rows(const sk_model *m, const sk_step *s) {
    range mine = share(s->rows);
    for (int64_t i = mine.begin; i < mine.end; i++) {
        const char *row = (const char *)m->embed + s->token_ids[i] * m->hidden * sk_element_size(m->embed_dtype);
        ops->widen(row, m->embed_dtype, m->hidden, m->residual + i * m->hidden);
    }
}

static void run_head(const run *r) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    range mine = share(s->samples + s->embeds);
    for (int64_t i = mine.begin; i < mine.end; i++)
        ops->rms_norm(m->residual + s->sample_rows[i] * m->hidden, m->norm, m->eps, m->hidden, s->final + i * m->hidden);
#pragma omp barrier
    if (!s->samples) return;
    sk_linear_team(&m->head, s->final, m->hidden, s->samples, s->logits, m->vocab, 0, r->linear_scratch);
#pragma omp barrier
    mine = share(s->samples);
    for (int64_t i = mine.begin; i < mine.end; i++)
        s->best[i] = (int32_t)ops->argmax(s->logits + i * m->vocab, m->vocab);
}

int sk_forward(const sk_model *m, const sk_step *s) {
    if (!valid(m, s)) return -1;
    char *scratch = m->scratch;
    run r = {m, s, (task *)(scratch + linear_bytes(m, s->threads)), 0, scratch, NULL, attend_floats(m)};
    r.attend_scratch = (float *)((char *)r.tasks + task_bytes(m));
    list_tasks(&r);
#pragma omp parallel num_threads((int)s->threads)
    {
        embed_rows(m, s);
        for (int64_t layer = 0; layer < m->layers; layer++) run_layer(&r, layer);
        run_head(&r);
    }
    return 0;
}
