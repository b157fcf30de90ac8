/* What is fetched into the caches beside a product, cut into parts that its tiles fetch one by one. */
#ifndef SERVING_KERNELS_BESIDE_H
#define SERVING_KERNELS_BESIDE_H

#include "linear.h"

/* What is still to be fetched with a block's tiles. */
typedef struct {
    const sk_stretch *stretch;
    int64_t offset;        /* into the first stretch */
    int64_t bytes, tiles;  /* how much it is, and over how many tiles it is spread */
} sk_fetch;

/* The part that comes with tasks [first, end) of `count`, which are so many tiles. */
static inline sk_fetch sk_fetch_share(sk_beside beside, int64_t first, int64_t end, int64_t count, int64_t tiles) {
    int64_t begin = beside.bytes * first / count;
    sk_fetch f = {beside.stretches, begin, beside.bytes * end / count - begin, tiles};
    for (; f.bytes && f.offset >= f.stretch->bytes; f.stretch++) f.offset -= f.stretch->bytes;
    return f;
}

/* The next tile's part: at most `most` bytes, in one stretch. */
static inline sk_stretch sk_fetch_next(sk_fetch *f, int64_t most) {
    if (!f->bytes || !f->tiles) return (sk_stretch){NULL, 0};
    int64_t part = (f->bytes + f->tiles - 1) / f->tiles, left = f->stretch->bytes - f->offset;
    if (part > most) part = most;
    if (part > left) part = left;
    sk_stretch found = {f->stretch->data + f->offset, part};
    f->tiles--;
    f->bytes -= part;
    f->offset += part;
    if (part == left) {
        f->stretch++;
        f->offset = 0;
    }
    return found;
}

#endif
