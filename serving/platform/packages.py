"""Sealed packages (ciphertext) on this replica's disk, by digest; fetched once, resumed after a break."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from protocol.names import is_digest
from serving.platform.downloads import Downloads

MAX_BYTES = 64 << 30  # of complete packages; the least recently used go first


class PackageStore:
    """A folder of packages. A file under its digest is complete; whether it is genuine is proven at every opening."""

    def __init__(self, folder: Path, downloads: Downloads, *, max_bytes: int = MAX_BYTES) -> None:
        """Use `folder`, made when the first package comes; keep at most `max_bytes` there."""
        self._folder, self._downloads, self._max_bytes = folder, downloads, max_bytes
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def fetch(self, digest: str, size: int) -> Path:
        """Return the path of package `digest`, after downloading the missing part of its `size` bytes.

        Two threads that want the same package share one download. Raises PlatformError or OSError.
        """
        if not is_digest(digest):
            raise ValueError("a package digest is 64 hex digits")
        with self._lock:
            lock = self._locks.setdefault(digest, threading.Lock())
        with lock:
            path = self._folder / digest
            if path.is_file() and path.stat().st_size == size:
                os.utime(path)
                return path
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = self._folder / f"{digest}.part"
            self._downloads.fetch(digest, size, partial)
            os.replace(partial, path)
            self._make_room(keep=path)
            return path

    def _make_room(self, keep: Path) -> None:
        # A package that is being opened stays readable through its open file.
        packages = [(p.stat().st_mtime, p.stat().st_size, p) for p in self._folder.iterdir() if p.suffix != ".part"]
        total = sum(size for _, size, _ in packages)
        for _, size, path in sorted(packages):
            if total <= self._max_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size

    def discard(self, digest: str) -> None:
        """Forget a package that did not open, so that the next try downloads the package again."""
        (self._folder / digest).unlink(missing_ok=True)
