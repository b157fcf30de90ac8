/* Shared by the AVX2 kernels of linear.h. */
#ifndef SERVING_KERNELS_LINEAR_AVX2_H
#define SERVING_KERNELS_LINEAR_AVX2_H

#if defined(__GNUC__) && !defined(__clang__)
/* It would keep a pointer for each offset of an unrolled loop, most of them on the stack. */
#pragma GCC optimize("no-ivopts")
#endif
#include <immintrin.h>

#include "linear_kernels.h"

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))

#endif
