"""Where a canary adapter's weights are: in every order and type in which a pool may lay them, in memory and on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

WINDOW = 48  # bytes of one needle
CHUNK = 16 << 20
# Values of a window that make it the canary's alone: no run of zeros, no pattern that other weights might have.
DISTINCT = 20


@dataclass(frozen=True)
class Canary:
    """needles: bytes that only this adapter has, by the encoding in which they would appear."""

    needles: Mapping[str, bytes]

    def of(self, kind: str) -> set[str]:
        """The names of the needles whose encoding begins with `kind`."""
        return {name for name in self.needles if name.startswith(kind)}

    def found_in(self, data: bytes | bytearray | memoryview) -> set[str]:
        """The names of the needles in `data`."""
        raw = bytes(data) if isinstance(data, memoryview) else data
        return {name for name, needle in self.needles.items() if needle in raw}


def memory_of(pid: int) -> Iterator[bytes]:
    """Yield the writable memory of a process, in overlapping pieces. Raises PermissionError where that is refused."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if found is None:
                continue
            begin, end = (int(number, 16) for number in found.groups())
            for start in range(begin, end, CHUNK):
                try:
                    memory.seek(start)
                    yield memory.read(min(CHUNK + WINDOW, end - start))
                except OSError:  # unmapped meanwhile, or a device's
                    break


def files_under(folders: Iterable[Path], since: float) -> Iterator[Path]:
    """Yield the regular files below `folders` that were written at `since` (Unix time) or later."""
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if path.is_file() and not path.is_symlink() and path.stat().st_mtime >= since:
                    yield path
            except OSError:  # removed meanwhile
                continue
