"""Uploads of sealed packages (ciphertext): `BLOB_DIR/uploads/<version id>.part` until they are whole and stored."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from uuid import UUID

from django.conf import settings

from marketplace.accounts.errors import Conflict, TooLarge
from marketplace.catalog.errors import OffsetMismatch
from marketplace.catalog.package_folder import storage_errors
from marketplace.catalog.package_stores import package_store

MAX_CHUNK_SIZE = 8 * 2**20  # bytes in one request
_COPY_SIZE = 1 << 18


class ByteStream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def part_path(version_id: UUID) -> Path:
    """Return where the bytes of an unfinished upload are."""
    return Path(settings.ENV.blob_dir) / "uploads" / f"{version_id}.part"


def part_size(version_id: UUID) -> int:
    """Return how many bytes have arrived."""
    try:
        return part_path(version_id).stat().st_size
    except FileNotFoundError:
        return 0


def require_chunk(length: int) -> None:
    """Raise TooLarge for a request that carries nothing, or too much."""
    if not 0 < length <= MAX_CHUNK_SIZE:
        raise TooLarge(f"a request may carry 1 to {MAX_CHUNK_SIZE} bytes", code="chunk_too_large")


def append_announced(
    upload_id: UUID, *, announced: int, offset: int, stream: ByteStream, length: int, code: str
) -> int:
    """Append as `append` does to an upload of `announced` bytes. Raises TooLarge with `code` beyond them."""
    if offset + length > announced and offset == part_size(upload_id):
        raise TooLarge(f"this upload was announced as {announced} bytes", code=code)
    return append(upload_id, offset=offset, stream=stream, length=length)


def require_whole(upload_id: UUID, *, announced: int) -> None:
    """Raise Conflict while bytes of an upload are missing."""
    arrived = part_size(upload_id)
    if arrived != announced:
        raise Conflict(f"{arrived} of {announced} bytes have arrived; continue the upload", code="upload_incomplete")


def append(version_id: UUID, *, offset: int, stream: ByteStream, length: int) -> int:
    """Append up to `length` bytes of `stream`, which start at `offset`, and return the size reached.

    The caller holds the version's row lock, so two appends never interleave. A stream that ends early, or a disk that
    fills up, keeps what was written: the size says where to continue. Raises OffsetMismatch, StorageUnavailable.
    """
    path = part_path(version_id)
    with storage_errors():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as part:
            size = os.fstat(part.fileno()).st_size
            if size != offset:
                raise OffsetMismatch(size)
            while length > 0 and (data := stream.read(min(length, _COPY_SIZE))):
                view = memoryview(data)
                while view:
                    view = view[part.write(view) :]
                length -= len(data)
            return os.fstat(part.fileno()).st_size


def keep(version_id: UUID, digest: str) -> None:
    """Make the finished upload durable in the package store, leaving the part for `discard` after the commit.

    The bytes are in both places for a moment, so a crash on either side of the database commit loses nothing. Takes as
    long as the store does: call it outside transactions. Raises StorageUnavailable.
    """
    with storage_errors():
        _kept_path(version_id).write_text(digest, encoding="ascii")
    package_store().put(part_path(version_id), digest)


def discard(version_id: UUID) -> None:
    """Remove the part, if there is one."""
    _kept_path(version_id).unlink(missing_ok=True)
    part_path(version_id).unlink(missing_ok=True)


def forget(version_id: UUID) -> None:
    """Remove what arrived of an upload that can never be accepted any more, and the package that `keep` made of it."""
    with contextlib.suppress(FileNotFoundError):
        package_store().remove(_kept_path(version_id).read_text(encoding="ascii"))
    discard(version_id)


def _kept_path(version_id: UUID) -> Path:
    # Notes which package `keep` made, until the upload is committed or refused.
    return part_path(version_id).with_suffix(".kept")


def parts() -> Iterator[tuple[UUID, float]]:
    """Yield (version id, unix time of the last write) of everything that is on disk of an upload."""
    for path in (Path(settings.ENV.blob_dir) / "uploads").glob("*.*"):
        with contextlib.suppress(ValueError, FileNotFoundError):
            yield UUID(path.stem), path.stat().st_mtime
