#if defined(__x86_64__)
#include <immintrin.h>

#define W 8
#define TARGET __attribute__((target("avx2,fma")))
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define DOT16(sums, a, b) _mm256_add_epi32((__m256i)(sums), _mm256_madd_epi16((__m256i)(a), (__m256i)(b)))
#define WIDEN(p) _mm256_cvtepi8_epi16(_mm_loadu_si128(p))
#define OPS sk_ops_avx2
#define OPS_NAME "avx2"
#include "ops_template.h"
#endif
