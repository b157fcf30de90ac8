/* Four lanes of whatever the compiler has: the truth the other tables are checked against. */
#define W 4
#define TARGET
#define FMA(a, b, c) ((a) * (b) + (c))
#define OPS sk_ops_portable
#define OPS_NAME "portable"
#include "ops_template.h"
