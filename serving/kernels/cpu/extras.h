/* What some adapters change beside their share of the layers' linears: see lora_kernels/extras. A step in which no row
 * has any skips all of it. */
#ifndef SERVING_EXTRAS_H
#define SERVING_EXTRAS_H

#include "forward_run.h"

/* Before a product that is added to the hidden states: those of rows with a scale or a bias here are put aside, so that
 * the scale is on the product alone. By every thread of the team; complete on return. */
void sk_set_aside(const sk_run *run, int64_t layer, const sk_product *product);

/* y = scale * y + bias of rows that have them, and what was put aside is added again. Likewise. */
void sk_finish_extras(const sk_run *run, int64_t layer, const sk_product *product);

/* Change the base's embedding of one token, before the model scales it. */
void sk_embed_extras(const sk_extras *extras, int64_t token, int64_t hidden, float *embedding);

/* Change the logits of the step's samples, before they are capped. By every thread of the team; complete on return. */
void sk_head_extras(const sk_run *run);

#endif
