"""CUDA as loads and uploads see it: streams, events, copies and whether a graph is being captured.

It is one small class so that tests can put another in its place which runs without a GPU and refuses what CUDA refuses.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from lora_kernels.errors import BackendError


class Event(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """Return whether the device has passed it. A query while this thread captures a graph breaks the capture."""
        ...

    def synchronize(self) -> None:
        """Make the host wait until the device has passed it; forbidden during a capture as `query` is."""
        ...


class Stream(Protocol):
    """Work that a device does in order."""

    def wait_event(self, event: Event) -> None:
        """Make the work queued from now on, not the host, wait for `event`."""
        ...


class Driver(Protocol):
    """One device, as seen by the calling thread."""

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured; the one question that never harms a capture."""
        ...

    def refuse_capture(self, why: str) -> None:
        """Raise BackendError, saying `why`, while the current stream is being captured."""
        ...

    def current(self) -> Stream:
        """Return the stream that this thread's launches go to."""
        ...

    def new_stream(self) -> Stream:
        """Return another stream of the device."""
        ...

    def using(self, stream: Stream) -> AbstractContextManager[None]:
        """Make `stream` the current one of this thread."""
        ...

    def record(self) -> Event:
        """Return an event that stands for all that the current stream has been given so far."""
        ...

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return uint8 zeros that the device can read while the host goes on."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue target[...] = source on the current stream and return at once."""
        ...


class CudaDriver:
    """`Driver` of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def refuse_capture(self, why: str) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise BackendError(why)

    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def new_stream(self) -> Any:
        return torch.cuda.Stream(self._device)

    def using(self, stream: Any) -> AbstractContextManager[None]:
        return torch.cuda.stream(stream)

    def record(self) -> Any:
        return torch.cuda.current_stream(self._device).record_event()

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)


def driver_of(device: torch.device) -> Driver | None:
    """Return the driver of a CUDA device, None for a CPU: there, copies are done when they return."""
    return CudaDriver(device) if device.type == "cuda" else None
