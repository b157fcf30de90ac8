#if defined(__x86_64__)
#include <immintrin.h>

#define W 8
#define TARGET __attribute__((target("avx2,fma")))
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define OPS sk_ops_avx2
#define OPS_NAME "avx2"
#include "ops_template.h"
#endif
