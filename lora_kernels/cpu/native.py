"""Addresses for other native code: a model's own C forward pass calls the kernels from inside its own team of threads.

The function at `team_function_address()` is, in C (LK_F32 is 0, LK_BF16 is 1; strides in elements):

    typedef struct { int64_t thread, threads; void (*wait)(void *barrier); void *barrier; } lk_member;
    void lk_apply_team(const void *site, const void *batch,
                       void *y, int64_t y_stride, int64_t y_dtype,
                       const void *x, int64_t x_stride, int64_t x_dtype, void *scratch, const lk_member *me);

Every thread of the team calls it with the same arguments and its own number; `wait` is the team's barrier. x and y must
be complete before, by a barrier of the caller's; it returns after a barrier, y then complete. It allocates nothing and
cannot fail. Rows without an adapter are not touched; a row gets the same bits in a team of any size.
"""

from __future__ import annotations

from lora_kernels.cpu import backend
from lora_kernels.errors import BackendError, TargetError
from lora_kernels.metadata import BatchMetadata
from lora_kernels.pool import AdapterPool


def team_function_address() -> int:
    """Address of lk_apply_team. Raises BackendError where the library is not available."""
    return backend.library().team_address


def site_address(pool: AdapterPool, site: str, layer: int) -> int:
    """Address of one layer's site, good as long as `pool` lives, across load and evict.

    Raises TargetError, or BackendError when the pool's backend is not the C library.
    """
    if pool.backend is not backend:
        raise BackendError("the pool does not run on the C library")
    storage = pool.site(site)
    if not 0 <= layer < storage.num_layers:
        raise TargetError(f"site {site!r} has {storage.num_layers} layers, got layer {layer}")
    return backend.site_handle(storage, layer, pool).address


def batch_address(meta: BatchMetadata) -> int:
    """Address of a batch's row groups, good as long as `meta` lives."""
    return backend.batch_address(meta)


def scratch_bytes(pool: AdapterPool, site: str, rows: int, threads: int) -> int:
    """Bytes of scratch that lk_apply_team needs at `site` for at most `rows` rows with an adapter, in such a team.

    Grows with both: ask once for the largest batch and take the most over all sites.
    """
    return backend.library().scratch_bytes(site_address(pool, site, 0), rows, threads)
