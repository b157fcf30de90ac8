"""The `intarsia` command: the one place where errors become messages and exit codes.

Nothing heavy is imported here: `intarsia --version` answers at once. `lazy_commands` imports the command that is run.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from creator_cli.commands.options import JSON_KEY
from creator_cli.errors import CliError, Interrupted
from creator_cli.lazy_commands import LazyGroup
from creator_cli.settings import load_settings
from creator_cli.streams import print_document, print_error


class _ErrorBoundary(LazyGroup):
    """Turn every exception of a command into one message and an exit code; INTARSIA_DEBUG=1 shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        # Imported here: the package brings numpy along, which --help and --version do without.
        from sealed_weights.process import keep_memory_private

        keep_memory_private()
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(_report(Interrupted("stopped"), ctx)) from None
        except BrokenPipeError:
            # The reader (`| head`) has gone. Drop what is buffered too, or the interpreter complains when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except Exception as error:
            if hasattr(error, "format_message"):  # a usage error: the parser shows it better
                raise
            if load_settings().debug:
                raise
            raise typer.Exit(_report(_as_cli_error(error), ctx)) from None


def _as_cli_error(error: Exception) -> CliError:
    if isinstance(error, CliError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return CliError(f"{where}{error.strerror or error}")
    # The exception's own text is left out: it may quote a secret.
    return CliError(
        f"this should not have happened ({type(error).__name__})", hint="INTARSIA_DEBUG=1 shows where", code="internal"
    )


def _report(error: CliError, ctx: Any) -> int:
    if ctx.meta.get(JSON_KEY):
        print_document(error.to_json())
    print_error(error.message, error.hint)
    return error.exit_code


app = typer.Typer(
    cls=_ErrorBoundary,
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
