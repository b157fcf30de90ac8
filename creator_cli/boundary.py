"""The place where errors of a command become one message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from creator_cli.commands.options import JSON_KEY
from creator_cli.errors import CliError, Interrupted
from creator_cli.settings import load_settings
from creator_cli.streams import print_document, print_error


class ErrorBoundary(TyperGroup):
    """Turn every exception of a command into one message and an exit code; INTARSIA_DEBUG=1 shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit, and a usage error, which the parser shows."""
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
