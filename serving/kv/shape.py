"""The dimensions of a model that its KV cache depends on."""

from __future__ import annotations

from typing import Protocol


class KVShape(Protocol):
    """Satisfied by `serving.models.config.ModelConfig`, which this package does not know."""

    @property
    def num_layers(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...
