"""CUDA without a GPU: streams that run in order, events, copies that happen late, and captures that break.

It behaves as CUDA does where loads depend on it: work that is not held back runs at once, behind what its stream was
given before; a copy reads its source when it runs, so that memory reused too early shows; a query or a wait of the host
during a capture breaks the capture; entering a capture waits for the device.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from lora_kernels import BackendError, driver


class CaptureBroken(AssertionError):
    """CUDA would answer "operation not permitted when stream is capturing"."""


class FakeEvent:
    """A point in a stream's work, behind which the device is or is not."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self.passed = cuda, False

    def query(self) -> bool:
        self._cuda.check_host_may_ask()
        return self.passed

    def synchronize(self) -> None:
        self._cuda.check_host_may_ask()
        with self._cuda.changed:
            assert self._cuda.changed.wait_for(lambda: self.passed, timeout=60), "the device is held for good"


class FakeStream:
    """Work in order; `waits` are the events that it was made to wait for."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self.work, self.waits = cuda, deque[Callable[[], bool]](), list[FakeEvent]()

    def wait_event(self, event: FakeEvent) -> None:
        self.waits.append(event)
        self._cuda.queue(self, lambda: event.passed)


class FakeCuda:
    """`lora_kernels.driver.Driver` on tensors of the CPU.

    allocated: bytes of every pinned allocation
    """

    def __init__(self) -> None:
        self.allocated: list[int] = []
        self.changed = threading.Condition(threading.RLock())
        self.default = FakeStream(self)
        self._streams = [self.default]
        self._mine = threading.local()
        self._capturing = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
        """Give this driver to every pool and buffer that is made from now on."""
        monkeypatch.setattr(driver, "driver_of", lambda device: self)
        return self

    # -- what loads see ---------------------------------------------------------------------------------------------

    def is_capturing(self) -> bool:
        return self._capturing and self.current() is self.default

    def refuse_capture(self, why: str) -> None:
        if self.is_capturing():
            raise BackendError(why)

    def current(self) -> FakeStream:
        return getattr(self._mine, "stream", self.default)

    def new_stream(self) -> FakeStream:
        stream = FakeStream(self)
        self._streams.append(stream)
        return stream

    @contextmanager
    def using(self, stream: FakeStream) -> Iterator[None]:
        before, self._mine.stream = self.current(), stream
        try:
            yield
        finally:
            self._mine.stream = before

    def record(self) -> FakeEvent:
        event = FakeEvent(self)

        def passed() -> bool:
            event.passed = True
            return True

        self.queue(self.current(), passed)
        return event

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.allocated.append(nbytes)
        return torch.zeros(nbytes, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        def copied() -> bool:
            target.copy_(source)
            return True

        self.queue(self.current(), copied)

    # -- what tests do ----------------------------------------------------------------------------------------------

    @contextmanager
    def held(self, stream: FakeStream) -> Iterator[None]:
        """Keep the device busy on `stream` with a kernel that ends with the block."""
        ended = []
        self.queue(stream, lambda: bool(ended))
        try:
            yield
        finally:
            ended.append(True)
            self.run()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture a graph on the default stream, once the device has done everything."""
        self.run()
        self.check_is_idle()
        self._capturing = True
        try:
            yield
        finally:
            self._capturing = False

    def check_is_idle(self) -> None:
        """Raise AssertionError when any stream still has work."""
        assert not any(stream.work for stream in self._streams)

    def check_host_may_ask(self) -> None:
        if self._capturing:
            raise CaptureBroken("the host asked for an event during a capture")

    def queue(self, stream: FakeStream, work: Callable[[], bool]) -> None:
        """Give `stream` work: called until it returns True."""
        with self.changed:
            stream.work.append(work)
        self.run()

    def run(self) -> None:
        """Let the device do what it can."""
        with self.changed:
            moved = True
            while moved:
                moved = False
                for stream in self._streams:
                    while stream.work and stream.work[0]():
                        stream.work.popleft()
                        moved = True
            self.changed.notify_all()
