"""Complete sealed packages (ciphertext) by their digests: in a folder, or in a bucket of a service that speaks S3.

Every reader and writer of a package goes through `package_store()`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from django.conf import settings

from marketplace.catalog.package_folder import FolderStore

if TYPE_CHECKING:
    from marketplace.catalog.buckets import Bucket


class PackageStore(Protocol):
    """A place of packages. Every method takes a digest and raises StorageUnavailable where the place is away."""

    def put(self, part: Path, digest: str) -> None:
        """Make the file durable as package `digest`: whole or not at all. Idempotent."""
        ...

    def size(self, digest: str) -> int | None:
        """Return the bytes of a package, None if there is none."""
        ...

    def reading(self, digest: str, *, max_bytes: int) -> AbstractContextManager[Path]:
        """Have the package as a file while the context lasts. Raises FileNotFoundError if there is none."""
        ...

    def remove(self, digest: str) -> None:
        """Delete a package, if there is one."""
        ...

    def signed_url(self, digest: str, *, seconds: int) -> str | None:
        """Return where anybody may fetch this one package for `seconds`, None if only the platform can serve it."""
        ...


def package_store() -> PackageStore:
    """Return the store that the environment names."""
    bucket = settings.ENV.blob_bucket
    return FolderStore(Path(settings.ENV.blob_dir)) if bucket is None else _bucket_store(bucket)


@lru_cache(maxsize=4)
def _bucket_store(bucket: Bucket) -> PackageStore:
    from marketplace.catalog.s3_packages import S3Store  # an extra: boto3 is loaded where a bucket is named

    return S3Store(bucket)
