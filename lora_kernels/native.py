"""For other native code: a model's own C forward pass calls the kernels from inside its own team of threads.

Such code includes sgmv.h (`HEADERS`) and calls `lk_shrink_team` and `lk_expand_team`, the halves of `lora_apply`, and
`lk_list_shrink` and `lk_list_expand`; sgmv.h says how. It is loaded after `load_library()`, which makes these functions
known to libraries that come later. Sites and batches are passed as the addresses below.
"""

from __future__ import annotations

from lora_kernels.cpu import backend
from lora_kernels.cpu.build import SOURCE_FOLDER, built_library
from lora_kernels.cpu.library import load_library
from lora_kernels.errors import BackendError, TargetError
from lora_kernels.metadata import BatchMetadata
from lora_kernels.pool import AdapterPool

__all__ = ["HEADERS", "batch_address", "built_library", "load_library", "scratch_bytes", "site_address"]

HEADERS = SOURCE_FOLDER


def site_address(pool: AdapterPool, site: str, layer: int) -> int:
    """Return the address of one layer's site, good as long as `pool` lives, across load and evict.

    Raises TargetError, or BackendError when the pool's backend is not the C library.
    """
    if pool.backend is not backend:
        raise BackendError("the pool does not run on the C library")
    storage = pool.site(site)
    if not 0 <= layer < storage.num_layers:
        raise TargetError(f"site {site!r} has {storage.num_layers} layers, got layer {layer}")
    return backend.site_handle(storage, layer).address


def batch_address(meta: BatchMetadata) -> int:
    """Return the address of a batch's row groups, good as long as `meta` lives."""
    return backend.batch_address(meta)


def scratch_bytes(pool: AdapterPool, site: str, rows: int, threads: int) -> int:
    """Return the bytes of scratch that the two halves need at `site` for at most `rows` rows with an adapter.

    Grows with rows and threads: ask once for the largest batch and take the most over all sites.
    """
    return backend.library().scratch_bytes(site_address(pool, site, 0), rows, threads)
