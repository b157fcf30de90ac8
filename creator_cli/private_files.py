"""Files that only their owner may read: written whole or not at all, 0600 in a 0700 folder."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from creator_cli.errors import CliError

MAX_JSON = 8 << 20  # bytes


def private_folder(path: Path) -> Path:
    """Create the folder and its parents with mode 0700 where they are missing; raises CliError."""
    try:
        # One by one: mkdir(parents=True) gives the mode to the last folder alone.
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CliError(f"{path}: cannot be created ({error.strerror})") from None
    return path


def write_private(path: Path, data: bytes, *, replace: bool = True) -> bool:
    """Write `data` durably to `path`, 0600. Without `replace`, an existing file stays. Return whether it was written.

    Raises CliError.
    """
    folder = private_folder(path.parent)
    try:
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=folder)  # 0600 from the start
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.replace(part, path)
                return True
            # A link, unlike a rename, never replaces what another process has just put there.
            os.link(part, path)
            return True
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
    except OSError as error:
        raise CliError(f"{path}: cannot be written ({error.strerror})") from None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object; raises CliError."""
    write_private(path, json.dumps(value, indent=1).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; return None if the file is missing. Raises CliError for anything else."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CliError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        value = json.loads(data) if len(data) <= MAX_JSON else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CliError(f"{path}: is damaged", hint=f"delete it: rm {path}")
    return value
