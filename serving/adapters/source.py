"""Where adapter weights come from. A source knows digests only; names and permissions are its caller's business."""

from __future__ import annotations

from typing import Protocol

from lora_kernels import AdapterTensors


class AdapterSource(Protocol):
    """Every method may block; `load` runs in a worker thread, the other two in the engine thread and must be quick."""

    def load(self, digest: str) -> AdapterTensors:
        """The adapter's tensors in host memory. Raises AdapterUnavailable or AdapterRevoked."""
        ...

    def copied(self, digest: str) -> None:
        """The pool holds its own copy now: what `load` returned is no longer read and may be wiped."""
        ...

    def release(self, digest: str) -> None:
        """The adapter is not resident any more, its pages are zeroed. Also called when a load came to nothing."""
        ...
