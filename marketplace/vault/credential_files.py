"""Credentials in files, for the machines that need them."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a line that its owner alone may read: the whole file is there, or the one before. Raises OSError."""
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    temporary.replace(path)
