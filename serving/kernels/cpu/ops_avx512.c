#if defined(__x86_64__)
#include <immintrin.h>

#define W 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma")))
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define WIDEN(h) ((vi)_mm512_cvtepu16_epi32((__m256i)(h)))
#define SUM(v) _mm512_reduce_add_ps(v)
#define LARGEST(v) _mm512_reduce_max_ps(v)
#define OPS sk_ops_avx512
#define OPS_NAME "avx512"
#include "ops_template.h"
#endif
