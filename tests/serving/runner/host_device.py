"""A GPU that does nothing: Triton chooses a variant for each launch, as it does on a GPU, and launches none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)


@dataclass
class Device:
    """Counts launches of Triton's kernels, and replays, since the last `reset`; keeps the variants that were asked for.

    variants: kernel and what its compilation depends on, in order of the first launch
    """

    launches: int = 0
    replays: int = 0
    variants: list[tuple[str, str]] = field(default_factory=list)

    def reset(self) -> None:
        self.launches = self.replays = 0

    def launch(self, *arguments: object) -> None:
        self.launches += 1

    def replay(self) -> None:
        """Replay any graph."""
        self.replays += 1

    def record(self, compute: Callable[[], object]) -> Device:
        """Launch a forward pass, as a recording does, and return the graph."""
        compute()
        return self


@contextmanager
def device() -> Iterator[Device]:
    """Run Triton's kernels on a device that does nothing."""
    found = Device()
    # As much of a compiled kernel as a launch asks for.
    kernel = SimpleNamespace(
        launch_metadata=lambda *arguments: None, run=found.launch, function=None, packed_metadata=None
    )

    def compile_nothing(function: Any, key: str, signature: object, index: int, *options: object) -> object:
        found.variants.append((function.__name__, key))
        function.device_caches[index][0][key] = kernel
        return kernel

    here = SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda index: 0, get_current_target=lambda: TARGET
    )
    with patch.object(JITFunction, "_do_compile", compile_nothing), patch.object(driver, "_active", here):
        yield found
