"""Where adapter weights come from. A source knows digests only; names and permissions are its caller's business."""

from __future__ import annotations

from typing import Protocol

from lora_kernels import AdapterTensors
from serving.adapter_stats import LevelSeconds
from serving.adapters.gate import Pause, go_on


class AdapterSource(Protocol):
    """`load` and `copied` may block and run in worker threads; `release` runs in the engine thread and must be quick.

    leased: what is loaded is on loan, and goes back when it has been idle for long
    seconds: where the time of loads went; written by the source
    """

    leased: bool
    seconds: LevelSeconds

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        """The adapter's tensors in host memory; `pause` is called between pieces of the work. Raises AdapterUnavailable
        or AdapterRevoked."""
        ...

    def copied(self, digest: str) -> None:
        """What `load` returned is no longer needed: wipe it. Idempotent; safe while somebody still reads (zeros)."""
        ...

    def release(self, digest: str) -> None:
        """Nothing of the adapter is held any more, its pages are zeroed. Also called when a load came to nothing."""
        ...

    def locked_bytes(self) -> int:
        """Bytes of what `load` returned and `copied` has not wiped that are locked in RAM and cannot reach swap."""
        ...
