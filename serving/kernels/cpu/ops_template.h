/* The operations of ops.h, once for all instruction sets. The including file defines
 *   W       lanes of a float vector (4, 8 or 16)
 *   TARGET  function attribute that switches the instruction set on, or nothing
 *   FMA     a * b + c of vectors
 *   DOT     a vector plus, in each lane, both products of two pairs of bfloat16; left out: float32 products of each
 *   DOT16   the same of vectors of integers and pairs of 16 bits; WIDEN, pairs of 8 bits to such pairs; left out as DOT
 *   NARROW  a float vector to bfloat16; where there is DOT
 *   SCALE   a vector times 2^n for a vector of whole n, rounded once; CLAMP(v, low, high), NaN for NaN, goes with it
 *   SUM, LARGEST, LARGEST_BITS  of a vector's lanes, in any order; where they are left out, one lane after the other
 *   OPS     the table, and OPS_NAME its name
 */
#include <float.h>
#include <math.h>

#include "ops.h"

#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef int16_t vh __attribute__((vector_size(2 * W)));
typedef int8_t vb __attribute__((vector_size(W)));

/* Smaller values are 0 in 8 bits: their inverse would not be finite. */
#define LEAST 1e-30f

/* Vectors in a group of SK_GROUP lanes. */
enum { NV = SK_GROUP / W };

/* Bytes of a lane in the cache of keys and values: a float, or a pair. */
INLINE int64_t lane_bytes(const int dtype) { return dtype == SK_INT8 ? 2 : 4; }

INLINE vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }

/* The first n < W values, zeros after them. */
INLINE vf load_some(const float *p, int64_t n) {
    float lanes[W] = {0};
    memcpy(lanes, p, (size_t)n * sizeof(float));
    return load(lanes);
}

/* W values, or, where only n are left, those. */
INLINE vf load_left(const float *p, int64_t n) { return n < W ? load_some(p, n) : load(p); }

INLINE vi load_pairs(const void *p, int64_t at) {
    vi pairs;
    memcpy(&pairs, (const int32_t *)p + at, sizeof pairs);
    return pairs;
}

/* Lanes of float32; or of pairs of bfloat16 or 8-bit integers the first of each, or the second. */
INLINE vf load_as(const void *p, int64_t at, const int dtype, const int second) {
    if (dtype == SK_F32) return load((const float *)p + at);
    if (dtype == SK_BF16) return (vf)(second ? load_pairs(p, at) & (int32_t)0xffff0000 : load_pairs(p, at) << 16);
    vh pairs;
    memcpy(&pairs, (const int16_t *)p + at, sizeof pairs);
    return __builtin_convertvector(__builtin_convertvector(second ? pairs >> 8 : pairs << 8 >> 8, vi), vf);
}

INLINE vf splat(float x) { return x - (vf){0}; }

/* Round values that fit to integers, in the lower 16 bits. */
INLINE vi nearest(vf v) { return (vi)(v + splat(12582912.0f)); }  /* 1.5 * 2^23 */

/* 0, 1, 2 ... */
INLINE vi places(void) {
    vi at;
    for (int i = 0; i < W; i++) at[i] = i;
    return at;
}

INLINE vf blend(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

#ifndef SUM
#define SUM(v) sum(v)
#define LARGEST(v) largest(v)
#define LARGEST_BITS(v) largest_bits(v)
INLINE float sum(vf v) {
    float total = v[0];
    for (int i = 1; i < W; i++) total += v[i];
    return total;
}

INLINE float largest(vf v) {
    float most = v[0];
    for (int i = 1; i < W; i++) most = v[i] > most ? v[i] : most;
    return most;
}

INLINE int32_t largest_bits(vi v) {
    int32_t most = v[0];
    for (int i = 1; i < W; i++) most = v[i] > most ? v[i] : most;
    return most;
}
#endif

/* Cephes' expf: 2 ulp; 0 below -104 (where there is no SCALE -87.3), infinite above 88.8 (88.3), NaN for NaN. */
INLINE vf exponential(vf x) {
#ifdef SCALE
    x = CLAMP(x, splat(-105.0f), splat(89.0f));
#endif
    vf shifted = FMA(x, splat(1.44269504088896341f), splat(12582912.0f));  /* 1.5 * 2^23: low bits hold the integer */
    vf n = shifted - splat(12582912.0f);
    vf r = FMA(n, splat(-0.693359375f), x);
    r = FMA(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = FMA(p, r, splat(1.3981999507e-3f));
    p = FMA(p, r, splat(8.3334519073e-3f));
    p = FMA(p, r, splat(4.1665795894e-2f));
    p = FMA(p, r, splat(1.6666665459e-1f));
    p = FMA(p, r, splat(5.0000001201e-1f));
    vf y = FMA(p, r * r, r) + splat(1.0f);
#ifdef SCALE
    return SCALE(y, n);
#else
    y = (vf)((vi)y + ((vi)shifted << 23));
    y = blend(x < splat(-87.3f), splat(0.0f), y);
    y = blend(x > splat(88.3f), splat(INFINITY), y);
    return blend(x == x, y, x);
#endif
}

/* W floats as values of a type: `at` of them lie before. */
INLINE void store_as(void *y, int64_t at, vf v, int64_t dtype) {
    if (dtype == SK_F32) {
        store((float *)y + at, v);
        return;
    }
#ifdef NARROW
    __typeof__(NARROW(v)) narrow = NARROW(v);
    memcpy((uint16_t *)y + at, &narrow, sizeof narrow);
#else
    for (int i = 0; i < W; i++) ((uint16_t *)y)[at + i] = lk_f32_to_bf16(v[i]);
#endif
}

/* The first n < W. */
INLINE void store_some_as(void *y, int64_t at, vf v, int64_t n, int64_t dtype) {
    char lanes[W * sizeof(float)];
    store_as(lanes, 0, v, dtype);
    memcpy((char *)y + at * lk_element_size(dtype), lanes, (size_t)(n * lk_element_size(dtype)));
}

TARGET static void rms_norm(const float *x, const float *weight, float eps, int64_t n, void *y, int64_t y_dtype) {
    vf squares[2] = {{0}, {0}};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        for (int j = 0; j < 2; j++) {
            vf v = load(x + i + j * W);
            squares[j] = FMA(v, v, squares[j]);
        }
    for (; i < n; i += W) {
        vf v = load_left(x + i, n - i);
        squares[0] = FMA(v, v, squares[0]);
    }
    const vf factor = splat(1.0f / sqrtf(SUM(squares[0] + squares[1]) / (float)n + eps));
    for (i = 0; i + W <= n; i += W) store_as(y, i, load(x + i) * factor * load(weight + i), y_dtype);
    if (i < n) store_some_as(y, i, load_some(x + i, n - i) * factor * load_some(weight + i, n - i), n - i, y_dtype);
}

INLINE vf silu(vf gate, vf up) { return gate / (splat(1.0f) + exponential(-gate)) * up; }

TARGET static void silu_mul(const float *gate, const float *up, int64_t n, void *y, int64_t y_dtype) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store_as(y, i, silu(load(gate + i), load(up + i)), y_dtype);
    if (i < n) store_some_as(y, i, silu(load_some(gate + i, n - i), load_some(up + i, n - i)), n - i, y_dtype);
}

/* GELU by its tanh form, x / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). */
INLINE vf gelu(vf gate, vf up) {
    const vf u = gate * FMA(gate * gate, splat(0.044715f), splat(1.0f));
    return gate / (splat(1.0f) + exponential(splat(-1.5957691216057308f) * u)) * up;
}

TARGET static void gelu_mul(const float *gate, const float *up, int64_t n, void *y, int64_t y_dtype) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store_as(y, i, gelu(load(gate + i), load(up + i)), y_dtype);
    if (i < n) store_some_as(y, i, gelu(load_some(gate + i, n - i), load_some(up + i, n - i)), n - i, y_dtype);
}

/* cap * tanh(x / cap), as cap * (1 - 2 / (exp(2x / cap) + 1)): to 1e-7 of the cap. */
INLINE vf cap_softly(vf x, float cap) {
    const vf e = exponential(x * splat(2.0f / cap));
    return splat(cap) - splat(2.0f * cap) / (e + splat(1.0f));
}

TARGET static void soft_cap(float *x, float cap, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store(x + i, cap_softly(load(x + i), cap));
    if (i < n) store_some_as(x, i, cap_softly(load_some(x + i, n - i), cap), n - i, SK_F32);
}

TARGET static void rotate(float *head, const float *cos, const float *sin, int64_t half) {
    int64_t i = 0;
    for (; i + W <= half; i += W) {
        vf a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
        store(head + i, a * c - b * s);
        store(head + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = b * cos[i] + a * sin[i];
    }
}

TARGET static void widen(const void *row, int64_t dtype, int64_t n, float *y) {
    if (dtype == SK_F32) {
        memcpy(y, row, (size_t)n * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n; i++) y[i] = lk_bf16_to_f32(((const uint16_t *)row)[i]);
}

/* The largest size of n values, infinite or NaN if one of them is: as integers they are in that order. */
INLINE float largest_size(const float *x, int64_t n) {
    vi most = {0};
    for (int64_t i = 0; i < n; i += W) {
        /* The tail is shorter than a vector: it is taken with some values before it. */
        vi size = (vi)(i && n - i < W ? load(x + n - W) : load_left(x + i, n - i)) & INT32_MAX;
        most = (vi)blend(size > most, (vf)size, (vf)most);
    }
    const int32_t bits = LARGEST_BITS(most);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    return largest;
}

TARGET static float quantise(const float *x, int64_t n, int8_t *to) {
    const float most = largest_size(x, n);
    const vf inverse = splat(most > LEAST ? 127.0f / most : 0.0f);
    for (int64_t i = 0; i < n; i += W) {
        vb values = __builtin_convertvector(nearest(load_left(x + i, n - i) * inverse), vb);
        if (n - i < W)
            memcpy(to + i, &values, (size_t)(n - i));
        else
            memcpy(to + i, &values, sizeof values);
    }
    return most > LEAST ? most / 127.0f : most - most;  /* NaN for NaN */
}

TARGET static int64_t argmax(const float *x, int64_t n) {
    vf best = splat(-INFINITY);
    vi at = {0}, index = places(), good = ~(vi){0};
    int64_t i = 0;
    for (; i + W <= n; i += W, index += W) {
        vf v = load(x + i);
        vi larger = v > best;
        good &= v <= splat(FLT_MAX);  /* false for NaN */
        best = blend(larger, v, best);
        at = (larger & index) | (~larger & at);
    }
    float top = -INFINITY;
    int64_t found = -1;
    for (int j = 0; j < W; j++) {
        if (!good[j]) return -1;
        if (best[j] > top || (best[j] == top && at[j] < found)) top = best[j], found = at[j];
    }
    for (; i < n; i++) {
        if (!(x[i] <= FLT_MAX)) return -1;
        if (x[i] > top) top = x[i], found = i;
    }
    return isfinite(top) ? found : -1;
}

#include "attend_template.h"

const sk_ops OPS = {OPS_NAME, DOTS, rms_norm, silu_mul, rotate, widen, quantise, argmax, attend, gelu_mul, soft_cap};
