/* The choice of a kernel set for each pair of activation and weight types. */
#include <string.h>

#include "kernels.h"

/* Kernel set by activation type and weight type. */
static const lk_kernels *chosen[2][LK_DTYPES] = {{&lk_portable, &lk_portable, &lk_portable},
                                                 {&lk_portable, &lk_portable, &lk_portable}};

static void use_portable(void) {
    for (int x = 0; x < 2; x++)
        for (int w = 0; w < LK_DTYPES; w++) chosen[x][w] = &lk_portable;
}

int lk_supports(const char *set) {
    if (!strcmp(set, "portable")) return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(set, "avx2")) return avx2;
    if (!strcmp(set, "avx512"))
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    return 0;
}

static int use(const lk_kernels *kernels, int64_t x_dtype, int64_t dtype) {
    if (!lk_agrees(kernels, x_dtype, dtype)) return 0;
    chosen[x_dtype][dtype] = kernels;
    return 1;
}

/* Use the kernels of one instruction set ("portable", "avx2", "avx512"), each only after it agreed with the
 * portable ones. 0; -1 when this processor lacks it; -2 when it disagreed. Not 0: the portable kernels are in use. */
int lk_use(const char *name) {
    int agreed = 1;
    use_portable();
    if (!lk_supports(name)) return -1;
#if defined(__x86_64__)
    if (strcmp(name, "portable"))
        for (int x = 0; x < 2; x++)
            for (int w = 0; w < LK_DTYPES; w++) agreed &= use(&lk_avx2, x, w);
    if (!strcmp(name, "avx512"))
        for (int x = 0; x < 2; x++) agreed &= use(&lk_avx512bf16, x, LK_BF16) && use(&lk_avx512bf16, x, LK_I8);
#endif
    if (agreed) return 0;
    use_portable();
    return -2;
}

const lk_kernels *lk_chosen(int64_t x_dtype, int64_t dtype) { return chosen[x_dtype][dtype]; }
