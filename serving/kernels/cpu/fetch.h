/* Memory to fetch into the caches while a product computes, cut into pieces that its tiles take along. */
#ifndef SERVING_KERNELS_FETCH_H
#define SERVING_KERNELS_FETCH_H

#include "linear_kernels.h"

typedef struct {
    const lk_strip *strip;       /* the first that is not fetched yet, */
    int64_t strips, at;          /* how many from there on, and bytes of the first that are */
    int64_t turn, panel_bytes;   /* bytes that a tile fetches in a turn, together and for each panel */
    int64_t turns, tiles;        /* that are left */
} sk_fetch;

/* Turns that the rest of a strip takes. */
static inline int64_t sk_turns_of(const sk_fetch *f, int64_t bytes) { return (bytes + f->turn - 1) / f->turn; }

/* Strips for so many tiles of so many panels that fetch `bytes` a turn and panel. */
static inline void sk_fetch_start(sk_fetch *f, const lk_strip *strips, int64_t count, int64_t tiles, int64_t panels,
                                  int64_t bytes) {
    *f = (sk_fetch){strips, count, 0, bytes * panels, bytes, 0, tiles};
    for (int64_t i = 0; i < count; i++) f->turns += sk_turns_of(f, strips[i].bytes);
}

/* The next tile's pieces, `most` and of so many turns together at most: how many. Every tile fetches the same, unless
 * those before could not. */
static inline int64_t sk_fetch_next(sk_fetch *f, sk_ahead *out, int64_t most, int64_t turns) {
    int64_t count = 0, each = (f->turns + f->tiles - 1) / f->tiles;
    if (each < turns) turns = each;
    while (count < most && turns > 0 && f->strips) {
        int64_t rest = sk_turns_of(f, f->strip->bytes - f->at), piece = rest < turns ? rest : turns;
        out[count++] = (sk_ahead){f->strip->data + f->at, f->turn, f->panel_bytes, piece};
        turns -= piece;
        f->turns -= piece;
        f->at += piece * f->turn;
        if (piece == rest) {
            f->strip++;
            f->strips--;
            f->at = 0;
        }
    }
    if (f->tiles > 1) f->tiles--;
    return count;
}

#endif
