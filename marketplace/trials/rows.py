"""Rows that a consumer uploads: JSON lines of a message and, if it has one, the expected answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from marketplace.accounts.errors import InvalidInput
from protocol.encoding import foreign_beginning

MAX_ROWS = 5_000
MAX_ROW_BYTES = 32 * 1024
MAX_BYTES = 8 * 2**20  # of all rows


@dataclass(frozen=True, slots=True, repr=False)
class Row:
    """One row. `expected` is None where the consumer judges by itself; it is text or JSON, as it was uploaded."""

    message: str
    expected: Any = None


def read_lines(content: bytes) -> list[Row]:
    """Parse JSON lines. Raises InvalidInput, which names the line and the rule and never quotes a row."""
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"the rows have more than {MAX_BYTES // 2**20} MiB", field="rows", code="rows_too_large")
    return check_rows(_parsed(number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip())


def check_rows(rows: Iterable[Any]) -> list[Row]:
    """Check rows that were parsed from JSON. Raises InvalidInput; rows count from 1."""
    found: list[Row] = []
    for number, row in enumerate(rows, 1):
        if number > MAX_ROWS:
            raise _refused(f"there are more than {MAX_ROWS:,} rows")
        found.append(_row(number, row))
    if not found:
        raise _refused("there are no rows")
    with_answer = sum(row.expected is not None for row in found)
    if with_answer not in (0, len(found)):
        raise _refused("either every row has an expected answer, or none has")
    return found


def pack(row: Row) -> bytes:
    """Return a row as it is encrypted."""
    return orjson.dumps([row.message, row.expected])


def unpack(content: bytes) -> Row:
    """Return what `pack` packed."""
    return Row(*orjson.loads(content))


def _parsed(number: int, line: bytes) -> Any:
    if len(line) > MAX_ROW_BYTES:
        raise _refused(f"line {number} has more than {MAX_ROW_BYTES // 1024} KiB")
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        raise _refused(f"line {number} {foreign_beginning(line) or 'is no JSON'}") from None


def _row(number: int, row: Any) -> Row:
    if not isinstance(row, dict) or not row.keys() <= {"message", "expected"}:
        raise _refused(f'row {number} must be {{"message": …, "expected": …}}')
    message = row.get("message")
    if not isinstance(message, str) or not message.strip() or "\0" in message:
        raise _refused(f"row {number} has no message")
    if len(orjson.dumps(row)) > MAX_ROW_BYTES:
        raise _refused(f"row {number} has more than {MAX_ROW_BYTES // 1024} KiB")
    return Row(message, row.get("expected"))


def _refused(rule: str) -> InvalidInput:
    return InvalidInput(rule, field="rows", code="invalid_rows")
