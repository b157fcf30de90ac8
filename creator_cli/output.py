"""The output of commands: tables for people, one JSON document for scripts, everything else on standard error."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from creator_cli.settings import load_settings
from creator_cli.streams import print_document, printable

# Wide enough that tables are not cut when the output goes to a file or another program.
_WIDTH_WITHOUT_TERMINAL = 200


def size_text(count: int) -> str:
    """Return a number of bytes for people: "4.2 MiB"."""
    if count < 1024:
        return f"{count} B"
    power = min(4, int(math.log2(count) // 10))
    return f"{count / 1024**power:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


class Output:
    """The output of one command. With `as_json`, standard output carries exactly one document."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    @property
    def has_terminal(self) -> bool:
        """Return whether standard error is a terminal, so that a bar of another package may be shown."""
        return sys.stderr.isatty()

    def document(self, value: Any) -> None:
        """Print the JSON document."""
        print_document(value)

    def say(self, text: str) -> None:
        """Print one line of the result, for people."""
        if not self.as_json:
            self._console(sys.stdout).print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print one line about the result on standard error."""
        self._console(sys.stderr).print(printable(text), style="dim", markup=False, highlight=False, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
        """Print a table for people. `right` names the columns to align right: numbers."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in columns:
            table.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text("" if cell is None else printable(cell)) for cell in row))
        self._console(sys.stdout).print(table)

    def facts(self, pairs: Sequence[tuple[str, object]]) -> None:
        """Print names and values, one pair per line."""
        table = Table.grid(padding=(0, 2))
        for name, value in pairs:
            table.add_row(Text(name, style="dim"), Text("" if value is None else printable(value), overflow="fold"))
        self._console(sys.stdout).print(table)

    def show(self, view: RenderableType) -> None:
        """Print tables that were made elsewhere."""
        self._console(sys.stdout).print(view)

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar over `total` bytes on standard error; yield a function to call with the bytes done."""
        with self._bar(what, total, DownloadColumn(binary_units=True)) as show:
            yield show

    @contextlib.contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar over `total` things on standard error; yield a function to call with the number done."""
        with self._bar(what, total, MofNCompleteColumn()) as show:
            yield show

    @contextlib.contextmanager
    def _bar(self, what: str, total: int, amount: ProgressColumn) -> Iterator[Callable[[int], None]]:
        console = self._console(sys.stderr)
        columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show a spinner on standard error, or one plain line if that is not a terminal."""
        console = self._console(sys.stderr)
        if not console.is_terminal:
            self.note(f"{what} …")
            yield
            return
        with console.status(what):
            yield

    @staticmethod
    def _console(stream: Any) -> Console:
        width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
        return Console(file=stream, width=width, no_color=load_settings().no_color)
