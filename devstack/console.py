"""The output of `make run` and `make demo`: steps with their time; a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

# Redirected output has no width of its own; 80 columns would break the tables.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120, soft_wrap=not sys.stdout.isatty())
error_console = Console(stderr=True, highlight=False)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Time a step, with a spinner on a terminal."""
    started = time.monotonic()
    if console.is_terminal:
        with console.status(f"{title} …"):
            yield
    else:
        yield
    console.print(f"  [green]✓[/green] {title} [dim]{time.monotonic() - started:.1f} s[/dim]")


def heading(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def line(text: str) -> None:
    console.print(f"  {text}")


def fail(text: str) -> None:
    error_console.print(f"\n[bold red]error:[/bold red] {text}")
