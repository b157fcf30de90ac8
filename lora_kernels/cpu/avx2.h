/* Shared by the AVX2 kernels. */
#ifndef LORA_KERNELS_AVX2_H
#define LORA_KERNELS_AVX2_H

#include <immintrin.h>

#include "kernels.h"

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))

typedef struct {
    __m256 first, second;  /* columns 0-7 and 8-15; of a pair of ranks the first and the second, 8 columns */
} pair;

INLINE __m256 load8_i8(const void *data) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)data)));
}

INLINE pair load16(const void *data, int64_t at, const int dtype) {
    pair p;
    if (dtype == LK_I8) {
        p.first = load8_i8((const int8_t *)data + at);
        p.second = load8_i8((const int8_t *)data + at + 8);
    } else if (dtype == LK_BF16) {
        __m256i both = _mm256_loadu_si256((const __m256i *)((const uint16_t *)data + at));
        p.first = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        p.second = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
    } else {
        p.first = _mm256_loadu_ps((const float *)data + at);
        p.second = _mm256_loadu_ps((const float *)data + at + 8);
    }
    return p;
}

/* sum += a * b. Written out because gcc 12, given the intrinsic, lets sums wander between registers. */
INLINE void multiply_add(__m256 *sum, __m256 a, __m256 b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}

/* The kernel set's expand: see lk_kernels. */
void lk_expand_avx2(const lk_columns *columns, int64_t dtype, const float *const *v, char *const *y, int64_t y_dtype,
                    int rows, float *panel);

#endif
