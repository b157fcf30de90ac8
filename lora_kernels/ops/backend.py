"""What a backend is, and which one a pool gets."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Protocol, cast

import torch

from lora_kernels.errors import BackendError

if TYPE_CHECKING:
    from lora_kernels.metadata import BatchMetadata
    from lora_kernels.pool import SiteStorage


class Backend(Protocol):
    """A module with the three operations. Arguments are checked already; the batch has rows with adapters."""

    def apply(self, y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
        """y += ΔW x, in place."""

    def shrink(self, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor) -> None:
        """v = scale · x Aᵀ, written where a row has ranks."""

    def expand(self, v: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, y: torch.Tensor) -> None:
        """y += v Bᵀ, in place."""


def choose_backend(device: torch.device, dtype: torch.dtype, name: str | None) -> Backend:
    """The fastest backend that runs on `device` with `dtype`, or the one named. Raises BackendError."""
    if name is None:
        return _torch()
    if name == "torch":
        return _torch()
    raise BackendError(f"unknown backend {name!r}")


def _torch() -> Backend:
    return cast(Backend, importlib.import_module("lora_kernels.ops.torch_path"))
