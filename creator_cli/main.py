"""The `intarsia` command.

Nothing heavy is imported here: `intarsia --version` answers at once. `lazy_commands` imports the command that is run.
"""

from __future__ import annotations

from typing import Annotated

import typer

from creator_cli.boundary import ErrorBoundary
from creator_cli.lazy_commands import LazyGroup


class _Commands(ErrorBoundary, LazyGroup):
    """The commands of `intarsia`, behind one boundary for errors."""


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    # Typer's own tracebacks would show local variables: tokens among them.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(value: bool) -> None:
    if value:
        # Imported here: every other command would pay 10 ms for it.
        from importlib.metadata import version

        typer.echo(f"intarsia {version('intarsia')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Sell predictions from your LoRA adapters without handing over the weights; see what you buy.

    Start with: intarsia login, then intarsia init and intarsia push DIR --listing model.json --publish
    """


def main() -> None:
    """Run the `intarsia` command."""
    app(prog_name="intarsia")
