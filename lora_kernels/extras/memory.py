"""Memory of extras: taken and given back whole, one stretch an adapter, within one budget."""

from __future__ import annotations

import math

import torch

from lora_kernels.errors import ExtrasError, PoolFullError
from lora_kernels.memory import keep_private, lazy_zeros

# Floats: every tensor of a stretch begins at a cache line.
ALIGN = 16


class ExtraMemory:
    """At most `limit` bytes on one device. Belongs to the thread that launches kernels.

    private: as of `AdapterPool`
    must_lock: a stretch that could reach swap is not handed out: so it is where the pool's pages are locked
    """

    def __init__(self, limit: int, device: torch.device, *, private: bool, must_lock: bool) -> None:
        self.limit, self.used = limit, 0
        self._device, self._private, self._must_lock = device, private, must_lock

    @property
    def free(self) -> int:
        """Bytes that may be taken."""
        return self.limit - self.used

    def take(self, nbytes: int) -> torch.Tensor:
        """Return zeroed memory, float32 [nbytes / 4]. Raises PoolFullError or ExtrasError (no lock), taking nothing."""
        if nbytes > self.free:
            raise PoolFullError(f"the adapter's extras need {nbytes} bytes, {self.free} of {self.limit} are free")
        with torch.inference_mode(False):  # another thread fills it, in whatever mode
            memory = lazy_zeros((nbytes // 4,), torch.float32, self._device)
        if self._private and self._device.type == "cpu" and not keep_private(memory) and self._must_lock:
            raise ExtrasError(f"{nbytes} bytes of extras cannot be locked in RAM (`ulimit -l`)")
        self.used += nbytes
        return memory

    def give_back(self, memory: torch.Tensor) -> None:
        """Zero what `take` returned and count it as free; the system has it again when nothing refers to it."""
        memory.zero_()
        self.used -= memory.nbytes


class ExtraWriter:
    """Lays tensors out in one stretch. The same calls in the same order on `ExtraWriter(None)` measure it."""

    def __init__(self, memory: torch.Tensor | None) -> None:
        self.memory = torch.empty(0, device="meta") if memory is None else memory
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Bytes that were taken so far."""
        return self._next * 4

    def take(self, *shape: int) -> torch.Tensor:
        """Return the next float32 [*shape], zeros; without memory, a tensor that has none."""
        count = math.prod(shape)
        begin = self._next
        self._next += -(-count // ALIGN) * ALIGN
        if self.memory.is_meta:
            return torch.empty(shape, device="meta")
        return self.memory[begin : begin + count].view(shape)
