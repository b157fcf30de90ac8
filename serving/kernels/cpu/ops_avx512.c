#if defined(__x86_64__)
#include <immintrin.h>

#define W 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni,avx2,fma")))
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define DOT(sums, a, b) _mm512_dpbf16_ps(sums, (__m512bh)(a), (__m512bh)(b))
#define DOT16(sums, a, b) _mm512_dpwssd_epi32((__m512i)(sums), (__m512i)(a), (__m512i)(b))
#define WIDEN(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256(p))
#define NARROW(v) _mm512_cvtneps_pbh(v)
#define CLAMP(v, low, high) _mm512_min_ps(high, _mm512_max_ps(low, v))
#define SCALE(v, n) _mm512_scalef_ps(v, n)
#define SUM(v) _mm512_reduce_add_ps(v)
#define LARGEST(v) _mm512_reduce_max_ps(v)
#define LARGEST_BITS(v) _mm512_reduce_max_epi32((__m512i)(v))
#define OPS sk_ops_avx512
#define OPS_NAME "avx512"
#include "ops_template.h"
#endif
