/* What is fetched into the caches while a part of a product computes: cut into pieces that its tiles take along. */
#ifndef SERVING_KERNELS_FETCH_H
#define SERVING_KERNELS_FETCH_H

#include "linear_kernels.h"

/* Pieces of a part, at most, and turns of a piece. */
enum { SK_PIECES = 512, SK_PIECE_TURNS = 16 };

typedef struct {
    sk_ahead piece[SK_PIECES];
    int64_t next, count;
    int64_t each;  /* pieces that a tile takes, if it has the turns */
} sk_fetch;

/* Strips for so many tiles of so many panels that fetch `bytes` a turn and panel. */
static inline void sk_fetch_start(sk_fetch *f, const sk_strip *strips, int64_t count, int64_t tiles, int64_t panels,
                                  int64_t bytes) {
    const int64_t turn = bytes * panels, piece = SK_PIECE_TURNS * turn;
    f->next = f->count = 0;
    for (const sk_strip *s = strips; s < strips + count; s++)
        for (int64_t at = 0; at < s->bytes && f->count < SK_PIECES; at += piece) {
            int64_t left = s->bytes - at, turns = left < piece ? (left + turn - 1) / turn : SK_PIECE_TURNS;
            f->piece[f->count++] = (sk_ahead){s->data + at, turn, bytes, turns};
        }
    f->each = (f->count + tiles - 1) / tiles;
}

/* The next tile's pieces, of so many turns together at most: how many. */
static inline int64_t sk_fetch_next(sk_fetch *f, sk_ahead *out, int64_t pieces, int64_t turns) {
    int64_t count = 0, most = f->each < pieces ? f->each : pieces;
    for (; count < most && f->next < f->count && f->piece[f->next].turns <= turns; count++) {
        turns -= f->piece[f->next].turns;
        out[count] = f->piece[f->next++];
    }
    return count;
}

#endif
