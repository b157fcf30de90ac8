"""The keys and values of one layer, as the kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class KVLayer(NamedTuple):
    """One layer's cache: a token's slot is block · block_size + offset.

    keys, values: [slots, kv_heads, head_dim]; a slot is contiguous, slots may be strided; both have the same strides
    key_scales, value_scales: contiguous float32 [slots, kv_heads] where keys and values are float8_e4m3fn: a head's
        numbers are the stored ones times its scale. None for other dtypes.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
