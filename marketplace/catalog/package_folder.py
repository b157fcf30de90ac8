"""Sealed packages (ciphertext) in a folder that web processes and workers share."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marketplace.catalog.errors import StorageUnavailable
from protocol.names import is_digest


def checked(digest: str) -> str:
    """Return `digest`, which is about to be a name of a file or object. Raises ValueError unless it is one."""
    if not is_digest(digest):
        raise ValueError("digest: must be 64 lower-case hex digits")
    return digest


class FolderStore:
    """`packages/<digest>` below a folder that web processes and workers share."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, made when the first package comes."""
        self._folder = folder / "packages"

    def path(self, digest: str) -> Path:
        """Return where a package is, or would be."""
        return self._folder / checked(digest)

    def put(self, part: Path, digest: str) -> None:
        """Give the file a second name; the part stays until its upload is committed, so a crash loses nothing."""
        package = self.path(digest)
        with storage_errors():
            package.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            link = package.with_name(f".{part.stem}.link")
            link.unlink(missing_ok=True)
            try:
                os.link(part, link)
                # rename() of two names of one file does nothing and leaves both.
                link.replace(package)
            finally:
                link.unlink(missing_ok=True)
            folder = os.open(package.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def size(self, digest: str) -> int | None:
        """Return the bytes of a package, None if there is none."""
        with storage_errors(), suppress(FileNotFoundError):
            return self.path(digest).stat().st_size
        return None

    @contextmanager
    def reading(self, digest: str, *, max_bytes: int) -> Iterator[Path]:
        """Yield the file itself."""
        path = self.path(digest)
        if path.stat().st_size > max_bytes:
            raise StorageUnavailable("a stored package is longer than it was announced", code="storage_unavailable")
        yield path

    def remove(self, digest: str) -> None:
        """Delete a package, if there is one."""
        with storage_errors():
            self.path(digest).unlink(missing_ok=True)

    def signed_url(self, digest: str, *, seconds: int) -> str | None:
        """Return None: the platform signs a URL of its own (`marketplace.vault.downloads`)."""
        return None


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn the system's errors of a file into StorageUnavailable, which says whether the disk is full."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        message = "the platform's storage is full" if full else "the platform's storage is not available"
        raise StorageUnavailable(
            f"{message}; try again later", code="storage_full" if full else "storage_unavailable"
        ) from error
