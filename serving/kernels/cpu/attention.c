/* Keys and values into the cache, and attention over it, shared out to the threads of a step. */
#include "forward_run.h"

/* With so many sequences a thread, a thread attends all heads of one. */
enum { TASKS_PER_THREAD = 4 };

static int64_t group_heads(const sk_model *m) { return m->heads / m->kv_heads; }

static int64_t task_queries(const sk_model *m) {
    int64_t queries = SK_QUERY_ROWS / group_heads(m);
    return queries ? queries : 1;
}

static sk_blocks layer_blocks(const sk_model *m, int64_t layer, int64_t kv_head) {
    sk_blocks b = {m->kv, 0, m->block_size, sk_padded(m->block_size), m->head_dim, sk_padded(m->head_dim), m->kv_dtype};
    b.stride = m->layers * m->kv_heads * sk_head_elements(&b);
    b.data += (layer * m->kv_heads + kv_head) * sk_head_elements(&b) * lk_element_size(b.dtype);
    return b;
}

static int64_t place_bytes(const sk_model *m) { return sk_aligned(m->max_rows * (int64_t)sizeof(sk_spot)); }

static int64_t task_bytes(const sk_model *m) { return sk_aligned(m->max_rows * m->kv_heads * (int64_t)sizeof(sk_task)); }

static int64_t attend_floats(const sk_model *m) {
    sk_blocks blocks = layer_blocks(m, 0, 0);
    return sk_aligned(4 * sk_attend_floats(&blocks, task_queries(m) * group_heads(m))) / 4;
}

/* Long tasks first, so that threads end together: later positions see more keys. All heads of a sequence make one task
 * where there are enough sequences: their keys lie side by side. */
static void list_tasks(sk_run *r) {
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
                r->tasks[count++] = (sk_task){(int32_t)c, (int32_t)first, (int32_t)(rest < queries ? rest : queries),
                                           s->chunk_rows[c] + (int32_t)first, (int32_t)h, (int32_t)heads};
        }
    r->task_count = count;
    r->attended.prepared = heads == m->kv_heads && sk_linear_prepares(m->layer->linear[SK_O].dtype);
}

/* The chunk that a row belongs to. */
static int64_t chunk_of(const sk_step *s, int64_t row) {
    int64_t low = 0, high = s->chunks;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        *(s->chunk_rows[middle] <= row ? &low : &high) = middle;
    }
    return low;
}

/* One query each. */
static void list_wanted(sk_run *r) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    int64_t count = 0;
    for (int64_t i = 0; i < r->rows; i++) {
        int64_t c = chunk_of(s, s->sample_rows[i]), first = s->sample_rows[i] - s->chunk_rows[c];
        for (int64_t h = 0; h < m->kv_heads; h++)
            r->tasks[count++] = (sk_task){(int32_t)c, (int32_t)first, 1, (int32_t)i, (int32_t)h, 1};
    }
    r->task_count = count;
}

/* List the places of every row's keys and values. */
static void list_places(sk_run *r) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    for (int64_t c = 0; c < s->chunks; c++)
        for (int64_t row = s->chunk_rows[c]; row < s->chunk_rows[c + 1]; row++) {
            int64_t position = s->chunk_starts[c] + row - s->chunk_rows[c];
            r->places[row] = (sk_spot){(int32_t)position, s->blocks[s->chunk_tables[c] + position / m->block_size]};
        }
}

int64_t sk_attention_bytes(const sk_model *m, int64_t threads) {
    return place_bytes(m) + 2 * task_bytes(m) + threads * attend_floats(m) * (int64_t)sizeof(float);
}

void sk_list_attention(sk_run *r, sk_run *wanted, char *memory) {
    r->places = (sk_spot *)memory;
    r->tasks = (sk_task *)(memory + place_bytes(r->model));
    r->attend_scratch = (float *)((char *)r->tasks + 2 * task_bytes(r->model));
    r->attend_floats = attend_floats(r->model);
    list_places(r);
    list_tasks(r);
    if (wanted == r) return;
    wanted->tasks = (sk_task *)((char *)r->tasks + task_bytes(r->model));
    wanted->attend_scratch = r->attend_scratch;
    wanted->attend_floats = r->attend_floats;
    list_wanted(wanted);
}

/* 8 bits, and the factors behind them; k and v become the integers. */
static void store_int8(const sk_ops *ops, const sk_blocks *b, char *block, int64_t at, float *k, float *v) {
    const int8_t *integers = (const int8_t *)k;
    char *keys = block + 2 * at, *values = block + sk_head_keys(b) + at / 2 * 2 * b->padded + at % 2;
    char *factors = block + sk_head_values(b) + at * (int64_t)sizeof(float);
    float factor = ops->quantise(k, b->head_dim, (int8_t *)k);
    memcpy(factors, &factor, sizeof factor);
    for (int64_t d = 0; d < b->head_dim; d += 2) memcpy(keys + d * b->lanes, integers + d, 2);
    factor = ops->quantise(v, b->head_dim, (int8_t *)v);
    memcpy(factors + b->lanes * (int64_t)sizeof(float), &factor, sizeof factor);
    integers = (const int8_t *)v;
    for (int64_t d = 0; d < b->head_dim; d++) values[2 * d] = integers[d];
}

static void store_kv(const sk_run *r, int64_t layer, int32_t block, int64_t at, int64_t head, float *k, float *v) {
    sk_blocks b = layer_blocks(r->model, layer, head);
    int64_t element = lk_element_size(b.dtype);
    char *block_of_head = b.data + block * b.stride * element, *values = block_of_head + sk_head_keys(&b) * element;
    if (b.dtype == SK_INT8) {
        store_int8(r->ops, &b, block_of_head, at, k, v);
    } else if (b.dtype == SK_BF16) {
        uint32_t *key = (uint32_t *)block_of_head + at;
        uint16_t *value = (uint16_t *)values + at / 2 * 2 * b.padded + at % 2;
        for (int64_t d = 0; d < b.head_dim; d += 2)
            key[d / 2 * b.lanes] = lk_f32_to_bf16(k[d]) | (uint32_t)lk_f32_to_bf16(k[d + 1]) << 16;
        for (int64_t d = 0; d < b.head_dim; d++) value[2 * d] = lk_f32_to_bf16(v[d]);
    } else {
        for (int64_t d = 0; d < b.head_dim; d++) ((float *)block_of_head)[d * b.lanes + at] = k[d];
        memcpy((float *)values + at * b.padded, v, (size_t)b.head_dim * sizeof(float));
    }
}

void sk_place_row(const sk_run *r, int64_t index, int64_t at) {
    const sk_model *m = r->model;
    const sk_layer *layer = &m->layer[index];
    int64_t dim = m->head_dim, half = m->rotated / 2, rotated = m->heads + m->kv_heads, width = rotated + m->kv_heads;
    float *row = m->qkv + at * width * dim;
    const float *cos = layer->rope ? layer->rope + r->places[at].position * m->rotated : NULL;
    if (layer->qkv_bias)
        for (int64_t i = 0; i < width * dim; i++) row[i] += layer->qkv_bias[i];
    for (int64_t h = 0; h < rotated; h++) {
        const float *norm = h < m->heads ? layer->q_norm : layer->k_norm;
        if (norm) r->ops->rms_norm(row + h * dim, norm, m->eps, dim, row + h * dim, SK_F32);
        if (cos) r->ops->rotate(row + h * dim, cos, cos + half, half);
    }
    for (int64_t h = 0; h < m->kv_heads; h++)
        store_kv(r, index, r->places[at].block, r->places[at].position % m->block_size, h,
                 row + (m->heads + h) * dim, row + (rotated + h) * dim);
}

static void attend_heads(const sk_run *r, int64_t layer, const sk_task *t, float *scratch) {
    const sk_model *m = r->model;
    const sk_step *s = r->step;
    int64_t dim = m->head_dim, group = group_heads(m), width = (m->heads + 2 * m->kv_heads) * dim;
    int64_t row = s->chunk_rows[t->chunk] + t->first;
    const sk_rows out = r->attended;
    for (int64_t h = t->kv_head; h < t->kv_head + t->kv_heads; h++) {
        sk_blocks blocks = layer_blocks(m, layer, h);
        int64_t to = (t->out * out.stride + h * group * dim) * lk_element_size(out.dtype);
        sk_span span = {
            .q = m->qkv + row * width + h * group * dim, .q_stride = width, .out = (char *)out.data + to,
            .out_stride = out.stride, .out_dtype = out.dtype, .queries = t->count, .heads = group,
            .first = s->chunk_starts[t->chunk] + t->first, .table = s->blocks + s->chunk_tables[t->chunk],
            .scale = m->score_scale, .cap = m->score_cap, .window = m->layer[layer].window,
        };
        r->ops->attend(&span, &blocks, scratch);
    }
}

void sk_attend_rows(const sk_run *r, int64_t layer, int64_t thread) {
    const sk_rows out = r->attended;
    float *scratch = r->attend_scratch + thread * r->attend_floats;
    for (int64_t i; (i = sk_team_take(r->team, r->task_count, 1, 1).begin) < r->task_count;) {
        const sk_task *t = &r->tasks[i];
        attend_heads(r, layer, t, scratch);
        for (int64_t at = t->out; out.prepared && at < t->out + t->count; at++)
            sk_linear_prepare(&r->model->layer[layer].linear[SK_O], sk_row_of(&out, at), at, r->linear_scratch);
    }
}
