"""The files of a run: JSON lines that stages append, read whatever state a killed writer left them in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = "GPU_RUN_RESULTS"  # names the file that a stage appends its records to
# Below what a file may measure to be carried back from a remote machine.
MOST_BYTES = 15 << 20


def append(file: Path, record: Mapping[str, Any]) -> None:
    """Append one record as a line of its own, also behind half a line that a killed process left."""
    line = b"\n" + json.dumps(record, ensure_ascii=False, default=str).encode() + b"\n"
    with file.open("ab", buffering=0) as stream:
        stream.write(line)


def emit(record: Mapping[str, Any]) -> None:
    """Append a record to this stage's results, or print it where the program runs by itself."""
    named = os.environ.get(RESULTS)
    if named:
        append(Path(named), record)
    print(json.dumps(record, ensure_ascii=False, default=str), flush=True)


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Yield every whole record; half lines, garbage and values that are no objects are passed over."""
    if not file.exists():
        return
    with file.open("rb") as stream:
        for line in stream:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def write_whole(file: Path, text: str) -> None:
    """Replace a file as a whole: a reader sees the old text or the new one."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def bound(file: Path) -> None:
    """Keep the first `MOST_BYTES` of a file, whole lines alone."""
    if file.exists() and file.stat().st_size > MOST_BYTES:
        with file.open("rb+") as stream:
            kept = stream.read(MOST_BYTES)
            stream.truncate(kept.rfind(b"\n") + 1)
