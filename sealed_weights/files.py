"""Careful file access: regular files only, no symbolic links, nothing half-written left behind."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sealed_weights.errors import FormatError


@contextlib.contextmanager
def open_regular(path: Path, *, follow_links: bool = False) -> Iterator[tuple[int, int]]:
    """Open `path` for reading and yield (descriptor, size in bytes); raises `FormatError` unless a regular file.

    A symbolic link is refused at the last component, so that a folder from a stranger cannot point at other files.
    `follow_links` is for folders of the user's own: a hub's cache consists of links.
    """
    try:
        # O_NONBLOCK: opening a FIFO without a writer would otherwise hang before it could be refused.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise FormatError(f"{path.name}: file is missing") from None
    except OSError as error:
        if path.is_symlink() and not follow_links:
            raise FormatError(f"{path.name}: must not be a symbolic link") from None
        raise FormatError(f"{path.name}: cannot be read ({error.strerror})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path.name}: must be a regular file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file that `open_regular` opened, for a reader that may not open files itself."""

    descriptor: int
    size: int


def read_exactly(descriptor: int, view: memoryview, offset: int) -> None:
    """Fill `view` from `offset` on; raises `FormatError` at an early end of file."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise FormatError("file: ended before its stated size")
        done += count


@contextlib.contextmanager
def atomic_write(destination: Path) -> Iterator[BinaryIO]:
    """Yield a new 0600 file beside `destination`; when the block ends well it is fsynced and renamed into place.

    On any error the temporary file is removed and `destination` is untouched.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{destination.name}.", suffix=".part", dir=destination.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, destination)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    fsync_directory(destination.parent)


def fsync_directory(directory: Path) -> None:
    """Make a rename or link in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
