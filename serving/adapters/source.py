"""Where adapter weights come from. A source knows digests only; names and permissions are its caller's business."""

from __future__ import annotations

from typing import Protocol

from lora_kernels import AdapterTensors
from serving.adapter_stats import LevelSeconds
from serving.adapters.gate import Pause, go_on


class AdapterSource(Protocol):
    """Loads adapters by digest.

    `load` and `copied` may block and run in worker threads; `release` runs in the engine thread and must be quick.

    leased: whether adapters are on loan and their leases are given back when they have been idle for long
    seconds: where the time of loads went; written by the source
    """

    leased: bool
    seconds: LevelSeconds

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        """Return the adapter's tensors in host memory; `pause` is called between pieces of the work.

        Raises AdapterUnavailable or AdapterRevoked.
        """
        ...

    def copied(self, digest: str) -> None:
        """Wipe what `load` returned: it is no longer needed. Idempotent; a concurrent reader sees zeros."""
        ...

    def release(self, digest: str) -> None:
        """Give the adapter back: its pages are zeroed and no copy is left. Also called after a failed load."""
        ...

    def locked_bytes(self) -> int:
        """Return how many bytes of unwiped tensors are locked in RAM, so that they cannot reach swap."""
        ...
