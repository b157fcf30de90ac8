"""The JSON document and the error message of a command, written without rich, so that errors appear at once."""

from __future__ import annotations

import json
import sys
from typing import Any


def printable(text: object) -> str:
    """Return `text` without control characters: a server's words must not steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in str(text))


def print_document(value: Any) -> None:
    """Print the JSON document of a command on standard output, on one line where that is no terminal."""
    sys.stdout.write(json.dumps(value, indent=2 if sys.stdout.isatty() else None) + "\n")
    sys.stdout.flush()


def print_error(message: str, hint: str | None) -> None:
    """Print one short message on standard error, and the next command to run."""
    sys.stderr.write(f"error: {printable(message)}\n")
    if hint:
        sys.stderr.write(f"next:  {printable(hint)}\n")
