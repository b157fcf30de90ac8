"""What a backend is, and which one a pool gets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

import torch

from lora_kernels.errors import BackendError

if TYPE_CHECKING:
    from lora_kernels.metadata import BatchMetadata
    from lora_kernels.pool import SiteStorage

# Pool dtypes the C kernels have.
C_DTYPES = (torch.float32, torch.bfloat16)


class Backend(Protocol):
    """A module with the three operations. Arguments are checked already; the batch has rows with adapters."""

    def apply(self, y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
        """y += ΔW x, in place."""

    def shrink(self, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor) -> None:
        """v = scale · x Aᵀ, written where a row has ranks."""

    def expand(self, v: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, y: torch.Tensor) -> None:
        """y += v Bᵀ, in place."""


def choose_backend(device: torch.device, dtype: torch.dtype, name: str | None = None) -> Backend:
    """The fastest backend that runs on `device` with `dtype`, or the one named ("c" or "torch").

    Raises BackendError when the named one cannot run. Compiles the C library on its first use on this machine.
    """
    if name not in (None, "c", "torch"):
        raise BackendError(f"unknown backend {name!r}")
    fits_c = device.type == "cpu" and dtype in C_DTYPES
    if name == "c" and not fits_c:
        raise BackendError(f"the C backend has no {dtype} on {device.type}")
    if name != "torch" and fits_c and _has_c_library():
        return cast(Backend, importlib.import_module("lora_kernels.cpu.backend"))
    if name == "c":
        raise BackendError("the C backend could not be compiled or loaded; the log says why")
    return cast(Backend, importlib.import_module("lora_kernels.ops.torch_path"))


def _has_c_library() -> bool:
    # Imported late: reading a pool on a GPU machine should not look for a C compiler.
    from lora_kernels.cpu.library import load_library

    return load_library() is not None
