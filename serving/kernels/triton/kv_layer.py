"""The keys and values of one layer, as the kernels take them."""

from __future__ import annotations

from typing import Protocol

import torch


class KVLayer(Protocol):
    """One layer's cache; `serving.kv.paged` makes it. A token's slot is block · block_size + offset."""

    @property
    def keys(self) -> torch.Tensor:
        """[slots, kv_heads, head_dim]; a slot is contiguous, slots may be strided."""
        ...

    @property
    def values(self) -> torch.Tensor:
        """The same shape, dtype and strides as `keys`."""
        ...

    @property
    def key_scales(self) -> torch.Tensor | None:
        """Contiguous float32 [slots, kv_heads] where keys and values are float8_e4m3fn, else None.

        A head's numbers are the stored ones times its scale.
        """
        ...

    @property
    def value_scales(self) -> torch.Tensor | None:
        """As `key_scales`."""
        ...
