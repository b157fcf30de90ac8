"""Small int32 arrays on their way to a device, every step: pinned memory with two sides, one copy, no waiting."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from lora_kernels import driver

SIDES = 2


class PinnedUpload:
    """`size` int32 on the device, at a static address, and two sides of as many on the host, pinned for CUDA.

    The copy of pageable memory may make the host wait for the device (over 64 KB it does), and 8,192 rows are 69 KB.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._driver = driver.driver_of(device)
        self._hosts = [self._host(4 * size).view(torch.int32) for _ in range(SIDES)]
        self._arrays = [host.numpy() for host in self._hosts]
        self._copied: list[driver.Event | None] = [None] * SIDES
        self._side = 0
        self.device_memory = torch.zeros(size, dtype=torch.int32, device=device)

    def _host(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8) if self._driver is None else self._driver.pinned(nbytes)

    def current_stream(self) -> driver.Stream | None:
        """Return the stream that `send` would use, None on a CPU."""
        return None if self._driver is None else self._driver.current()

    def begin(self) -> npt.NDArray[np.int32]:
        """Return the side to write next, once its last copy has ended. Raises BackendError under graph capture."""
        if self._driver is not None:
            self._driver.refuse_capture("metadata goes up before a graph is captured or replayed, never inside it")
        self._side = (self._side + 1) % SIDES
        copied = self._copied[self._side]
        if copied is not None:
            copied.synchronize()
        return self._arrays[self._side]

    def send(self, used: int) -> None:
        """Start the copy of the first `used` entries on the current stream."""
        host = self._hosts[self._side][:used]
        if self._driver is None:
            self.device_memory[:used].copy_(host)
        else:
            self._driver.copy(self.device_memory[:used], host)
            self._copied[self._side] = self._driver.record()
