/* The places of weights: see lk_site. `at` is a place in the page tables. */
#ifndef LORA_KERNELS_PLACES_H
#define LORA_KERNELS_PLACES_H

#include "kernels.h"

static inline int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/* Ranks [r, r + LK_UNIT) of a slice of a page; r is a multiple of LK_UNIT. */
static inline const char *unit_of_a(const lk_site *site, int64_t at, int64_t slice, int64_t r) {
    int64_t element = site->page_table[at] * site->a_page + (slice * site->page_size + r) * site->padded_k;
    return (const char *)site->a + element * lk_element_size(site->dtype);
}

/* The factors on these ranks. */
static inline const float *scales_of_unit(const lk_site *site, int64_t at, int64_t slice, int64_t r) {
    static const float ones[LK_UNIT] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (!site->rank_scales) return ones;
    return site->rank_scales + (site->page_table[at] * site->slices + slice) * site->page_size + r;
}

/* Elements from one unit of ranks of a page of b to the next. */
static inline int64_t unit_of_b(const lk_site *site) { return site->padded_n * LK_UNIT; }

/* The first ranks of a page, from a column of b on that begins a block. */
static inline const char *page_of_b(const lk_site *site, int64_t at, int64_t column) {
    int64_t element = site->page_table[at] * site->b_page + lk_b_place(column, site->dtype);
    return (const char *)site->b + element * lk_element_size(site->dtype);
}

#endif
