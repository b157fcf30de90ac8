/* Shared by the AVX512-BF16 kernels. They are for bfloat16 and 8-bit weights: float32 activations are rounded to
 * bfloat16 on their way in, and so is v on its way to a b in bfloat16, as tensor cores take them; 8-bit weights are
 * bfloat16 numbers as they are. / */
#ifndef LORA_KERNELS_AVX512BF16_H
#define LORA_KERNELS_AVX512BF16_H

#include <immintrin.h>
#include <string.h>

#include "kernels.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni")))
#define INLINE \
    static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni")))

/* How far ahead of use one row's weights are fetched: whole blocks of a. Into the second-level cache: the first has few
 * places for lines on their way from memory, and one core then reads 20 GB/s instead of 14 (Zen 4); steps of 4 to 12
 * rows take 5 to 8 % less time. */
enum { AHEAD_BYTES = 2048 };

INLINE __m512 widen_i8(const void *data) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)data)));
}

/* The first so many of 16. */
INLINE __mmask16 first_of_16(int64_t count) {
    return count >= 16 ? (__mmask16)0xffff : count > 0 ? (__mmask16)((1u << count) - 1) : 0;
}

/* The kernel set's expand: see lk_kernels. */
void lk_expand_avx512bf16(const lk_columns *columns, int64_t dtype, const float *const *v, char *const *y,
                          int64_t y_dtype, int rows, float *panel);

#endif
