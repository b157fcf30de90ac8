"""One adapter's extras, ready for kernels: float32, views of one stretch of memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, eq=False)
class Factors:
    """ΔW of the embedding or of the head; `up` has the scale in it.

    down: of an embedding [vocabulary, r], a row a token; of a head [r, hidden]
    up: of an embedding [r, hidden]; of a head [r, vocabulary]
    """

    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows that replace the base's. ids: int32 [n], ascending; rows: [n, hidden]"""

    ids: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True, eq=False)
class Extras:
    """y = scale · (W x + ΔW x) + bias at a site of a layer, and what replaces or joins embedding and head.

    memory: the stretch that everything here lies in
    scales, biases: by layer and site, [N] each, 1 and 0 where a slice has none
    head_scale: [vocabulary], on the head's product with its ΔW in it
    """

    memory: torch.Tensor
    scales: Mapping[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    biases: Mapping[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    embed: Factors | None = None
    head: Factors | None = None
    head_scale: torch.Tensor | None = None
    embed_tokens: TokenRows | None = None
    head_tokens: TokenRows | None = None
    # Whatever a runner wants to keep (native descriptors); filled by it alone.
    cache: dict[Hashable, object] = field(default_factory=dict)
