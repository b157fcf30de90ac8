/* The AVX-512 intrinsics that the kernels of linear.h use, one lane at a time: in place of the compiler's header, so that the
 * kernels run in tests on processors without AVX-512. Compile with -Dtarget(x)= so that no such instruction is made. */
#ifndef AVX512_EMULATED_H
#define AVX512_EMULATED_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EMULATED static inline __attribute__((always_inline, unused))

typedef float __m512 __attribute__((vector_size(64)));
typedef int64_t __m512i __attribute__((vector_size(64)));
typedef uint16_t __m512bh __attribute__((vector_size(64)));
typedef int64_t __m128i __attribute__((vector_size(16)));
typedef int64_t __m256i __attribute__((vector_size(32)));
typedef uint16_t __m256bh __attribute__((vector_size(32)));
typedef uint16_t __mmask16;

enum { _MM_HINT_T0 };

#define _mm_prefetch(at, hint) ((void)(at))

typedef union {
    __m512 floats;
    __m512i bits;
    __m512bh halves;
    float f32[16];
    int32_t i32[16];
    uint32_t u32[16];
    uint64_t u64[8];
    uint16_t u16[32];
    int8_t i8[64];
    uint8_t u8[64];
} emulated_512;

typedef union {
    __m256i bits;
    __m256bh halves;
    uint16_t u16[16];
} emulated_256;

typedef union {
    __m128i bits;
    int8_t i8[16];
    uint8_t u8[16];
} emulated_128;

EMULATED __m512 _mm512_setzero_ps(void) { return (__m512){0}; }
EMULATED __m512i _mm512_setzero_si512(void) { return (__m512i){0}; }
EMULATED __m512i _mm512_castps_si512(__m512 a) { return (__m512i)a; }
EMULATED __m512 _mm512_castsi512_ps(__m512i a) { return (__m512)a; }

EMULATED __m512 _mm512_set1_ps(float value) {
    emulated_512 out;
    for (int i = 0; i < 16; i++) out.f32[i] = value;
    return out.floats;
}

EMULATED __m512i _mm512_set1_epi32(int32_t value) {
    emulated_512 out;
    for (int i = 0; i < 16; i++) out.i32[i] = value;
    return out.bits;
}

EMULATED __m512 _mm512_loadu_ps(const void *from) {
    __m512 out;
    memcpy(&out, from, sizeof out);
    return out;
}

EMULATED __m512i _mm512_loadu_si512(const void *from) {
    __m512i out;
    memcpy(&out, from, sizeof out);
    return out;
}

/* Lanes that the mask leaves out are not touched, as in the instruction. */
EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void *from) {
    emulated_512 out = {{0}};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy(&out.f32[i], (const char *)from + 4 * i, 4);
    return out.floats;
}

EMULATED void _mm512_storeu_ps(void *to, __m512 value) { memcpy(to, &value, sizeof value); }

EMULATED void _mm256_mask_storeu_epi16(void *to, __mmask16 mask, __m256i value) {
    emulated_256 from = {value};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy((char *)to + 2 * i, &from.u16[i], 2);
}

EMULATED __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
EMULATED __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }

EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    emulated_512 x = {a}, y = {b}, sum = {c};
    for (int i = 0; i < 16; i++) sum.f32[i] = __builtin_fmaf(x.f32[i], y.f32[i], sum.f32[i]);
    return sum.floats;
}

EMULATED __m512 _mm512_cvtepi32_ps(__m512i a) {
    emulated_512 from = {.bits = a}, out;
    for (int i = 0; i < 16; i++) out.f32[i] = (float)from.i32[i];
    return out.floats;
}

EMULATED float emulated_bf16_to_f32(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

/* To nearest even; NaN stays NaN. */
EMULATED __m256bh _mm512_cvtneps_pbh(__m512 a) {
    emulated_512 from = {a};
    emulated_256 out;
    for (int i = 0; i < 16; i++) {
        uint32_t bits = (uint32_t)from.i32[i];
        int nan = (bits & 0x7fffffffu) > 0x7f800000u;
        out.u16[i] = (uint16_t)(nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    return out.halves;
}

/* Each lane: the odd product first, then the even one, each rounded into the sum. */
EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    emulated_512 out = {sum}, x = {.halves = a}, y = {.halves = b};
    for (int i = 0; i < 16; i++)
        for (int half = 1; half >= 0; half--)
            out.f32[i] = __builtin_fmaf(emulated_bf16_to_f32(x.u16[2 * i + half]),
                                        emulated_bf16_to_f32(y.u16[2 * i + half]), out.f32[i]);
    return out.floats;
}

#define EACH(lanes) for (int i = 0; i < lanes; i++)

EMULATED void _mm512_storeu_si512(void *to, __m512i value) { memcpy(to, &value, sizeof value); }
EMULATED void _mm_storeu_si128(__m128i *to, __m128i value) { memcpy(to, &value, sizeof value); }

EMULATED __m512i _mm512_max_epu32(__m512i a, __m512i b) {
    emulated_512 x = {.bits = a}, y = {.bits = b};
    EACH(16) if (y.u32[i] > x.u32[i]) x.u32[i] = y.u32[i];
    return x.bits;
}

EMULATED __m512i _mm512_min_epi32(__m512i a, __m512i b) {
    emulated_512 x = {.bits = a}, y = {.bits = b};
    EACH(16) if (y.i32[i] < x.i32[i]) x.i32[i] = y.i32[i];
    return x.bits;
}

EMULATED __m512i _mm512_sllv_epi32(__m512i a, __m512i counts) {
    emulated_512 x = {.bits = a}, y = {.bits = counts};
    EACH(16) x.u32[i] = y.u32[i] < 32 ? x.u32[i] << y.u32[i] : 0;
    return x.bits;
}

/* Quarters of a, then of b. */
EMULATED __m512i _mm512_shuffle_i64x2(__m512i a, __m512i b, int choice) {
    emulated_512 x = {.bits = a}, y = {.bits = b}, out;
    EACH(8) out.u64[i] = (i < 4 ? x : y).u64[(choice >> (i / 2 * 2) & 3) * 2 + i % 2];
    return out.bits;
}

EMULATED __m512i _mm512_shuffle_epi32(__m512i a, int choice) {
    emulated_512 x = {.bits = a}, out;
    EACH(16) out.u32[i] = x.u32[i / 4 * 4 + (choice >> (i % 4 * 2) & 3)];
    return out.bits;
}

EMULATED __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
    emulated_512 x = {.bits = a}, y = {.bits = b}, out;
    EACH(8) out.u64[i] = (i % 2 ? y : x).u64[i / 2 * 2];
    return out.bits;
}

EMULATED __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
    emulated_512 x = {.bits = a}, y = {.bits = b}, out;
    EACH(8) out.u64[i] = (i % 2 ? y : x).u64[i / 2 * 2 + 1];
    return out.bits;
}

/* To nearest even; what has no integer, NaN too, is the least one. */
EMULATED __m512i _mm512_cvtps_epi32(__m512 a) {
    emulated_512 x = {a}, out;
    EACH(16) out.i32[i] = fabsf(x.f32[i]) < 2147483648.0f ? (int32_t)rintf(x.f32[i]) : INT32_MIN;
    return out.bits;
}

EMULATED __m128i _mm512_cvtsepi32_epi8(__m512i a) {
    emulated_512 x = {.bits = a};
    int8_t bytes[16];
    __m128i out;
    EACH(16) bytes[i] = (int8_t)(x.i32[i] > 127 ? 127 : x.i32[i] < -128 ? -128 : x.i32[i]);
    memcpy(&out, bytes, sizeof out);
    return out;
}

EMULATED float _mm512_reduce_add_ps(__m512 a) {
    emulated_512 x = {a};
    for (int half = 8; half; half /= 2) EACH(half) x.f32[i] += x.f32[i + half];
    return x.f32[0];
}

EMULATED __m256i _mm256_loadu_si256(const __m256i *from) {
    __m256i out;
    memcpy(&out, from, sizeof out);
    return out;
}

EMULATED __m128i _mm_loadu_si128(const __m128i *from) {
    __m128i out;
    memcpy(&out, from, sizeof out);
    return out;
}

#define _mm512_setr_epi32(...) ((emulated_512){.i32 = {__VA_ARGS__}}.bits)
#define _mm512_setr_ps(...) ((emulated_512){.f32 = {__VA_ARGS__}}.floats)

EMULATED __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }

EMULATED __m512i _mm512_add_epi32(__m512i a, __m512i b) {
    emulated_512 x = {.bits = a}, y = {.bits = b};
    EACH(16) x.u32[i] += y.u32[i];
    return x.bits;
}

EMULATED __m512i _mm512_srli_epi32(__m512i a, int count) {
    emulated_512 x = {.bits = a};
    EACH(16) x.u32[i] >>= count;
    return x.bits;
}

EMULATED __m512i _mm512_slli_epi32(__m512i a, int count) {
    emulated_512 x = {.bits = a};
    EACH(16) x.u32[i] <<= count;
    return x.bits;
}

/* Of an index its last four bits. */
EMULATED __m512 _mm512_permutexvar_ps(__m512i index, __m512 table) {
    emulated_512 at = {.bits = index}, from = {table}, out;
    EACH(16) out.f32[i] = from.f32[at.u32[i] & 15];
    return out.floats;
}

EMULATED __m512i _mm512_cvtepu16_epi32(__m256i a) {
    emulated_256 from = {a};
    emulated_512 out;
    EACH(16) out.u32[i] = from.u16[i];
    return out.bits;
}

EMULATED __m512i _mm512_cvtepi8_epi32(__m128i a) {
    emulated_128 from = {a};
    emulated_512 out;
    EACH(16) out.i32[i] = from.i8[i];
    return out.bits;
}

EMULATED __m256i _mm256_cvtepu8_epi16(__m128i a) {
    emulated_128 from = {a};
    emulated_256 out;
    EACH(16) out.u16[i] = from.u8[i];
    return out.bits;
}

EMULATED __m256i _mm256_slli_epi16(__m256i a, int count) {
    emulated_256 x = {a};
    EACH(16) x.u16[i] = (uint16_t)(x.u16[i] << count);
    return x.bits;
}

EMULATED __m256i _mm256_set1_epi16(short value) {
    emulated_256 out;
    EACH(16) out.u16[i] = (uint16_t)value;
    return out.bits;
}

EMULATED __m256i _mm256_and_si256(__m256i a, __m256i b) { return a & b; }
EMULATED __m256i _mm256_or_si256(__m256i a, __m256i b) { return a | b; }

/* Numbers alone, neither infinity nor NaN. */
EMULATED __m512 _mm512_cvtph_ps(__m256i a) {
    emulated_256 from = {a};
    emulated_512 out;
    EACH(16) {
        uint32_t half = from.u16[i], exponent = half >> 10 & 31, fraction = half & 0x3ff;
        float value = exponent ? ldexpf((float)(fraction | 0x400), (int)exponent - 25) : ldexpf((float)fraction, -24);
        out.f32[i] = half >> 15 ? -value : value;
    }
    return out.floats;
}

/* b in the low half. */
EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 a, __m512 b) {
    emulated_256 high = {.halves = _mm512_cvtneps_pbh(a)}, low = {.halves = _mm512_cvtneps_pbh(b)};
    emulated_512 out;
    EACH(16) {
        out.u16[i] = low.u16[i];
        out.u16[16 + i] = high.u16[i];
    }
    return out.halves;
}

/* The first factor unsigned, the second signed. */
EMULATED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    emulated_512 out = {.bits = sum}, x = {.bits = a}, y = {.bits = b};
    for (int i = 0; i < 64; i++) out.i32[i / 4] += x.u8[i] * y.i8[i];
    return out.bits;
}

#endif
