"""Which rows of a step belong to which adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lora_kernels import AdapterPool, BatchMetadata
from serving.core import Chunk


class ResidentAdapters(Protocol):
    """Adapters in a kernel pool; slot -1 is the base model."""

    @property
    def pool(self) -> AdapterPool: ...

    def slot(self, digest: str | None) -> int: ...


def batch_metadata(chunks: Sequence[Chunk], adapters: ResidentAdapters) -> BatchMetadata | None:
    """For rows in the order of `chunks`; None where none of them has an adapter."""
    slots = [adapters.slot(chunk.sequence.digest) for chunk in chunks]
    if all(slot < 0 for slot in slots):
        return None
    return BatchMetadata.build(slots, [chunk.count for chunk in chunks], adapters.pool)
