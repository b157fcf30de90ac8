"""The file that blocks are spilled to: it has no name, so that it is gone with the process, however that ends."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
from pathlib import Path

from serving.errors import ConfigError

log = logging.getLogger(__name__)

# Offsets, lengths and addresses of a direct read or write are multiples of this.
ALIGNED = 4096
_SUFFIX = ".intarsia-kv"
# Not every system has them.
_DIRECT, _UNNAMED = getattr(os, "O_DIRECT", 0), getattr(os, "O_TMPFILE", 0)


class SpillFile:
    """`size` bytes on the disk of `folder`, read and written past the page cache where the file system does that.

    Raises ConfigError, which names `folder`, when it is not a folder, cannot be written to, or has too little space.
    """

    def __init__(self, folder: Path, size: int) -> None:
        if not folder.is_dir():
            raise ConfigError(f"--kv-disk {folder}: not a folder")
        free = _free_bytes(folder)
        if free < size:
            raise ConfigError(
                f"--kv-disk {folder}: {free / 1e9:.1f} GB are free there, --kv-disk-gb wants {size / 1e9:.1f}"
            )
        try:
            self.descriptor, self.direct = _open(folder)
        except OSError as error:
            raise ConfigError(f"--kv-disk {folder}: no file can be written there ({error.strerror})") from error
        if not self.direct:
            log.info(
                "the file system of %s does no direct input and output: spilled KV takes page cache, as ciphertext",
                folder,
            )

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data`. Raises OSError."""
        while data:
            count = os.pwrite(self.descriptor, data, offset)
            data, offset = data[count:], offset + count

    def read(self, out: memoryview, offset: int) -> None:
        """Fill `out`. Raises OSError, also where the file ends before."""
        while out:
            count = os.preadv(self.descriptor, [out], offset)
            if not count:
                raise OSError(f"the file ends at {offset}")
            out, offset = out[count:], offset + count

    def close(self) -> None:
        os.close(self.descriptor)


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _open(folder: Path) -> tuple[int, bool]:
    """Return a file without a name, and whether it is direct: some systems refuse that when it is opened, others when
    it is used."""
    for direct in (True, False) if _DIRECT else (False,):
        try:
            descriptor = _open_unnamed(folder, _DIRECT if direct else 0)
        except OSError:
            if not direct:
                raise
            continue
        try:
            with mmap.mmap(-1, ALIGNED) as page:
                os.pwrite(descriptor, page, 0)
            return descriptor, direct
        except OSError:
            os.close(descriptor)
            if not direct:
                raise
    raise OSError("no file could be opened")


def _open_unnamed(folder: Path, flags: int) -> int:
    flags |= os.O_RDWR | os.O_CLOEXEC
    if _UNNAMED:
        with contextlib.suppress(OSError):  # not every file system has files without names
            return os.open(folder, flags | _UNNAMED, 0o600)
    path = folder / (secrets.token_hex(8) + _SUFFIX)
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        path.unlink()
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
