"""The usage journal on disk: lines of `protocol.journal` in numbered segment files.

A crash can tear only the last line of the last segment: it fails its CRC or lacks its LF, and is cut off on reopening.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from protocol.journal import Record, decode_line

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 20


def segment_paths(folder: Path) -> list[Path]:
    """Return the segments, oldest first."""
    return sorted(path for path in folder.glob("*.journal") if path.stem.isdigit())


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of segment `number`."""
    return folder / f"{number:08d}.journal"


def read_segment(path: Path, *, last: bool) -> Iterator[tuple[int, Record]]:
    """Yield (byte offset, record). In the last segment a damaged tail is cut off the file.

    A damaged line before good lines is disk corruption: the line is skipped with a log message.
    """
    good_end, damaged = 0, 0
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            record = decode_line(line)
            if record is None:
                damaged += 1
                continue
            if damaged:
                log.error("usage journal %s: %d damaged line(s) before byte %d skipped", path, damaged, file.tell())
                damaged = 0
            yield file.tell() - len(line), record
            good_end = file.tell()
    if damaged and last:
        log.warning("usage journal %s: torn last line cut off at byte %d", path, good_end)
        os.truncate(path, good_end)
    elif damaged:
        log.error("usage journal %s: damaged after byte %d", path, good_end)


def read_at(path: Path, offset: int) -> Record | None:
    """Return the record at `offset`, or None if it cannot be read back."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return decode_line(file.readline(MAX_LINE_BYTES))
    except OSError:
        return None


def create_segment(folder: Path, number: int) -> int:
    """Create (or open) a segment for appending, readable by its owner alone, and make its name durable.

    Returns the file descriptor; raises OSError.
    """
    descriptor = os.open(segment_path(folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
