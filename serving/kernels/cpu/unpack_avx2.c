#if defined(__x86_64__)
#include "linear_avx2.h"

#define UNPACK sk_avx2_unpack
#define UNPACK_INLINE INLINE
#define UNPACK_ATTRIBUTE AVX2
#include "unpack_template.h"
#endif
