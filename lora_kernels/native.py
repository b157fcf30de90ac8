"""The C library from other native code: a model's forward pass calls the kernels from its own team of threads.

The functions of `team_functions()` are, in C (LK_F32 is 0, LK_BF16 is 1; strides in elements):

    typedef struct { int64_t row, row_end, column, column_end; } lk_part;
    typedef struct { const char *data; int64_t bytes; } lk_strip;

    void lk_shrink_team(const void *site, const void *batch, const void *x, int64_t x_stride, int64_t x_dtype,
                        void *scratch, int64_t thread, int64_t threads);
    void lk_expand_team(const void *site, const void *batch, void *y, int64_t y_stride, int64_t y_dtype,
                        void *scratch, int64_t thread, int64_t threads);
    void lk_expand_part(const void *site, const void *batch, void *y, int64_t y_stride, int64_t y_dtype,
                        void *scratch, int64_t thread, int64_t threads, const lk_part *part);
    int64_t lk_list_shrink(const void *site, const void *batch, int64_t thread, int64_t threads, lk_strip *out,
                           int64_t most);
    int64_t lk_list_expand(const void *site, const void *batch, int64_t thread, int64_t threads, lk_strip *out,
                           int64_t most);
    int64_t lk_list_part(const void *site, const void *batch, const lk_part *part, lk_strip *out, int64_t most);

The first two are the halves of `lora_apply`. Every thread of the team calls them with the same arguments and its own
number. x must be complete before the first; a barrier; y must be complete before the second; a barrier before y is
read. Instead of the second, each part of y may be expanded by one call of the third, by any thread, while the part is
still in that thread's caches: there need be no y but for that part. They allocate nothing and cannot fail. Rows without
an adapter are not touched; a row gets the same bits in a team of any size and however y is cut.

The last three list the weights that a thread of the team will read in the first half, in the second, or that a part of
y needs: a caller whose products leave the memory idle can have each thread fetch its own meanwhile.
"""

from __future__ import annotations

from lora_kernels.cpu import backend
from lora_kernels.cpu.build import built_library
from lora_kernels.errors import BackendError, TargetError
from lora_kernels.metadata import BatchMetadata
from lora_kernels.pool import AdapterPool

__all__ = ["batch_address", "built_library", "scratch_bytes", "site_address", "team_functions"]


def team_functions() -> dict[str, int]:
    """Return addresses by name without the prefix, `shrink_team` and so on.

    Raises BackendError where there is no library.
    """
    return dict(backend.library().team_addresses)


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
