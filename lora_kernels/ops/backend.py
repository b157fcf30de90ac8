"""What a backend is, and which one a pool gets."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch

from lora_kernels.errors import BackendError

if TYPE_CHECKING:
    from lora_kernels.metadata import BatchMetadata
    from lora_kernels.storage import SiteStorage

# Pool dtypes the C kernels have.
C_DTYPES = (torch.float32, torch.bfloat16, torch.int8)
# Pool dtypes that Triton's kernels have not.
NOT_TRITON_DTYPES = (torch.int8,)
# A tensor-core tile has at least 16 rows: the ranks of one page.
TRITON_PAGE_SIZE = 16


class Backend(Protocol):
    """A module with the three operations, and the copy into pages. Arguments are checked already; a batch has
    rows with adapters.

    NEEDS_UNITS: whether it reads the batch's `units`, which cost the host time to list.
    IN_BLOCKS: how its pools lie, see SiteStorage: in blocks of ranks and columns, or in rows.
    """

    NEEDS_UNITS: bool
    IN_BLOCKS: bool

    def apply(self, y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
        """y += ΔW x, in place."""

    def shrink(self, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor) -> None:
        """v = scale · x Aᵀ, written where a row has ranks."""

    def expand(self, v: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, y: torch.Tensor) -> None:
        """y += v Bᵀ, in place."""

    def copy(
        self, into: torch.Tensor, layers: Sequence[int], weights: Sequence[torch.Tensor], *, turned: bool = False
    ) -> None:
        """into[layers[i]] = weights[i], rounded, or its transpose, from the first rank and column on. On the host, in
        any number of threads at once.

        into: [layers, page_size, columns], or in blocks
        """


@runtime_checkable
class FirstWriteBackend(Protocol):
    """A backend whose apply can also write y without reading it."""

    def write(self, y: torch.Tensor, x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> None:
        """y = ΔW x, and 0 in rows without an adapter."""


@runtime_checkable
class EmbeddingBackend(Protocol):
    """A backend with a look-up of its own."""

    def embed(
        self, y: torch.Tensor, tokens: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata
    ) -> None:
        """y += scale · B A[:, tokens], in place."""


def choose_backend(device: torch.device, dtype: torch.dtype, page_size: int, name: str | None = None) -> Backend:
    """The fastest backend that runs on `device` with `dtype`, or the one named ("c", "triton" or "torch").

    Raises BackendError when the named one cannot run. Compiles the C library on its first use on this machine.
    """
    if name not in (None, "c", "triton", "torch"):
        raise BackendError(f"unknown backend {name!r}")
    if name in (None, "c") and device.type == "cpu" and dtype in C_DTYPES and _has_c_library():
        return _backend("lora_kernels.cpu.backend")
    triton_can = dtype not in NOT_TRITON_DTYPES and page_size == TRITON_PAGE_SIZE
    if name in (None, "triton") and triton_can and _has_triton(device):
        return _backend("lora_kernels.triton.backend")
    if name in (None, "torch"):
        return _backend("lora_kernels.ops.torch_path")
    raise BackendError(f"the {name} backend cannot run {dtype} with pages of {page_size} on {device.type} here")


def _backend(module: str) -> Backend:
    return cast(Backend, importlib.import_module(module))


def _has_c_library() -> bool:
    # Imported late: a pool on a GPU should not look for a C compiler.
    from lora_kernels.cpu.library import load_library

    return load_library() is not None


def _has_triton(device: torch.device) -> bool:
    """Triton drives CUDA, and CPU tensors under its interpreter."""
    return (device.type == "cuda" or triton_is_interpreted()) and importlib.util.find_spec("triton") is not None


def triton_is_interpreted() -> bool:
    """Whether Triton kernels run in Python, on a CPU: TRITON_INTERPRET=1, read by Triton when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"
