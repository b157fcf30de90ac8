/* This processor's limits: reads of memory, and multiply-adds by instruction. And a team that runs a list of
 * products as a forward pass does, one parallel region for all of them. */
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

enum { CHAINS = 12 };

/* Each thread reads its share of the memory once, in order. The result only keeps the reads alive. */
uint64_t limits_read(const uint64_t *memory, int64_t words, int threads) {
    uint64_t total = 0;
    (void)threads;
#pragma omp parallel num_threads(threads) reduction(^ : total)
    {
        int64_t share = words / omp_get_num_threads() / 32 * 32;
        const uint64_t *mine = memory + share * omp_get_thread_num();
        uint64_t lanes[32] = {0};
        for (int64_t i = 0; i < share; i += 32) {
            __builtin_prefetch(mine + i + 256);
            __builtin_prefetch(mine + i + 264);
            __builtin_prefetch(mine + i + 272);
            __builtin_prefetch(mine + i + 280);
            for (int lane = 0; lane < 32; lane++) lanes[lane] ^= mine[i + lane];
        }
        for (int lane = 0; lane < 32; lane++) total ^= lanes[lane];
    }
    return total;
}

#if defined(__x86_64__)
/* Without the assembler line the compiler would see that the sums are never read. */
#define KEEP(value) __asm__ volatile("" : "+v"(value))
#define EACH_CHAIN _Pragma("GCC unroll 12") for (int chain = 0; chain < CHAINS; chain++)

__attribute__((target("avx2,fma"))) static void fma_avx2(int64_t rounds) {
    __m256 sums[CHAINS], factor = _mm256_set1_ps(0.5f);
    EACH_CHAIN sums[chain] = factor;
    for (int64_t round = 0; round < rounds; round++) {
        EACH_CHAIN {
            sums[chain] = _mm256_fmadd_ps(sums[chain], factor, factor);
            KEEP(sums[chain]);
        }
    }
}

/* 64 products of 8 bits: as many as 16 bits can add up go on to 32. */
__attribute__((target("avx2"))) static void integer_avx2(int64_t rounds) {
    __m256i sums[CHAINS], factor = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    EACH_CHAIN sums[chain] = factor;
    for (int64_t round = 0; round < rounds; round++) {
        EACH_CHAIN {
            __m256i first = factor, second = factor;
            KEEP(first);
            KEEP(second);
            first = _mm256_add_epi16(_mm256_maddubs_epi16(first, factor), _mm256_maddubs_epi16(second, factor));
            sums[chain] = _mm256_add_epi32(sums[chain], _mm256_madd_epi16(first, ones));
            KEEP(sums[chain]);
        }
    }
}

__attribute__((target("avx512f"))) static void fma_avx512(int64_t rounds) {
    __m512 sums[CHAINS], factor = _mm512_set1_ps(0.5f);
    EACH_CHAIN sums[chain] = factor;
    for (int64_t round = 0; round < rounds; round++) {
        EACH_CHAIN {
            sums[chain] = _mm512_fmadd_ps(sums[chain], factor, factor);
            KEEP(sums[chain]);
        }
    }
}

__attribute__((target("avx512f,avx512bf16"))) static void bf16_avx512(int64_t rounds) {
    __m512 sums[CHAINS];
    __m512bh factor = (__m512bh)_mm512_set1_epi16(0x3f00);
    EACH_CHAIN sums[chain] = _mm512_setzero_ps();
    for (int64_t round = 0; round < rounds; round++) {
        EACH_CHAIN {
            sums[chain] = _mm512_dpbf16_ps(sums[chain], factor, factor);
            KEEP(sums[chain]);
        }
    }
}

__attribute__((target("avx512f,avx512vnni"))) static void integer_avx512(int64_t rounds) {
    __m512i sums[CHAINS], factor = _mm512_set1_epi8(1);
    EACH_CHAIN sums[chain] = _mm512_setzero_si512();
    for (int64_t round = 0; round < rounds; round++) {
        EACH_CHAIN {
            sums[chain] = _mm512_dpbusd_epi32(sums[chain], factor, factor);
            KEEP(sums[chain]);
        }
    }
}
#endif

/* Run `rounds` of 12 independent multiply-adds on every thread. Returns the multiply-adds of one thread, 0 for a name
 * that is not one of this processor's. */
int64_t limits_multiply(const char *name, int64_t rounds, int threads) {
    (void)threads;
#if defined(__x86_64__)
    static const struct {
        const char *name;
        void (*run)(int64_t);
        int64_t lanes;
    } all[] = {{"fma_avx2", fma_avx2, 8},       {"integer_avx2", integer_avx2, 64},    {"fma_avx512", fma_avx512, 16},
               {"bf16_avx512", bf16_avx512, 32}, {"integer_avx512", integer_avx512, 64}};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i].name)) {
#pragma omp parallel num_threads(threads)
            all[i].run(rounds);
            return rounds * CHAINS * all[i].lanes;
        }
#endif
    (void)name;
    (void)rounds;
    return 0;
}
