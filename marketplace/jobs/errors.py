"""Refusals of files, batches and predictions in the background."""

from __future__ import annotations

from collections.abc import Sequence

from marketplace.accounts.errors import Conflict, InvalidInput, Refusal


class BadLines(InvalidInput):
    """Lines of a file break rules. `lines` has the number and the rule of the first ones, never their text."""

    code = "invalid_lines"

    def __init__(self, lines: Sequence[tuple[int, str]], count: int) -> None:
        """Name the first bad lines in the message."""
        first = "; ".join(f"line {number}: {rule}" for number, rule in lines)
        more = f"; and {count - len(lines):,} more" if count > len(lines) else ""
        super().__init__(f"{first}{more}", field="file")
        self.lines = tuple(lines)
        self.count = count


class FileTooLarge(Refusal):
    """A file has more bytes or lines than one may have."""

    code = "file_too_large"
    status = 413


class TooManyModels(InvalidInput):
    """The lines of a file name more models than one may."""

    code = "too_many_names"


class StorageFull(Conflict):
    """The organization's files would take more room than they may."""

    code = "file_storage_full"


class TooMuchOpen(Refusal):
    """The organization has as many batches or predictions open as it may have."""

    code = "too_many_open"
    status = 429
