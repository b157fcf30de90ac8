"""The interface of a backend, and the choice of one for a pool."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Protocol, cast

import torch

from lora_kernels.batch import Batch
from lora_kernels.errors import BackendError
from lora_kernels.ops.launch import triton_is_interpreted
from lora_kernels.storage.site import SiteStorage

# Pool dtypes the C kernels have.
C_DTYPES = (torch.float32, torch.bfloat16, torch.int8)
# Pool dtypes that Triton's kernels have not.
NOT_TRITON_DTYPES = (torch.int8,)
# A tensor-core tile has at least 16 rows: the ranks of one page.
TRITON_PAGE_SIZE = 16


class Backend(Protocol):
    """A module with the operations, and the copy into pages. Arguments are checked; a batch has rows with adapters.

    NAME: "c", "triton" or "torch"
    NEEDS_UNITS: whether it reads the batch's `units`, which cost the host time to list
    IN_BLOCKS: how its pools lie, see SiteStorage: in blocks of ranks and columns, or in rows
    """

    NAME: str
    NEEDS_UNITS: bool
    IN_BLOCKS: bool

    def apply(self, y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> None:
        """Compute y += ΔW x, in place."""

    def write(self, y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> None:
        """Compute y = ΔW x, and 0 in rows without an adapter."""

    def shrink(self, x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, v: torch.Tensor) -> None:
        """Compute v = scale · x Aᵀ, written where a row has ranks."""

    def expand(self, v: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, y: torch.Tensor) -> None:
        """Compute y += v Bᵀ, in place."""

    def copy(
        self, into: torch.Tensor, layers: Sequence[int], weights: Sequence[torch.Tensor], *, turned: bool = False
    ) -> None:
        """Copy weights into pages, see `loading.writing.Copy`."""


def choose_backend(device: torch.device, dtype: torch.dtype, page_size: int, name: str | None = None) -> Backend:
    """Return the fastest backend that runs on `device` with `dtype`, or the one named ("c", "triton" or "torch").

    Raises BackendError when the named one cannot run. Compiles the C library on its first use on this machine.
    """
    # Backends are imported late: a pool on a GPU should not look for a C compiler, one on a CPU not load Triton.
    if name not in (None, "c", "triton", "torch"):
        raise BackendError(f"unknown backend {name!r}")
    if name in (None, "c") and device.type == "cpu" and dtype in C_DTYPES and _has_c_library():
        from lora_kernels.cpu import backend

        return cast(Backend, backend)
    triton_can = dtype not in NOT_TRITON_DTYPES and page_size == TRITON_PAGE_SIZE
    if name in (None, "triton") and triton_can and _has_triton(device):
        from lora_kernels.ops import triton_path

        return cast(Backend, triton_path)
    if name in (None, "torch"):
        from lora_kernels.ops import torch_path

        return cast(Backend, torch_path)
    raise BackendError(f"the {name} backend cannot run {dtype} with pages of {page_size} on {device.type} here")


def _has_c_library() -> bool:
    from lora_kernels.cpu.library import load_library

    return load_library() is not None


def _has_triton(device: torch.device) -> bool:
    """Return whether Triton runs there: it drives CUDA, and CPU tensors under its interpreter."""
    return (device.type == "cuda" or triton_is_interpreted()) and importlib.util.find_spec("triton") is not None
