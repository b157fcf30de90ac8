"""The `intarsia-admin` command, of the extra `web`: run where the platform's environment variables are set.

Nothing of Django is imported before a command runs, so that `--help` answers at once and without a database.
"""

from __future__ import annotations

import os
import sys

import typer

from marketplace.command import bases

app = typer.Typer(
    no_args_is_help=True,
    # Typer's own tracebacks would show local variables: secrets among them.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.add_typer(bases.app, name="base")


@app.callback()
def _commands() -> None:
    """Run the platform: its base models. It needs the environment variables of the web process."""


def main() -> None:
    """Run the command; a refusal is one line on standard error and exit code 2."""
    from sealed_weights.process import keep_memory_private

    keep_memory_private()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings")
    try:
        app()
    except bases.Failed as failure:
        sys.stderr.write(f"error: {failure}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
