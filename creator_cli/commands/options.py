"""Options that several commands share."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from creator_cli.errors import CliError, Refused

JSON_KEY = "intarsia.json"


def _remember_json(context: typer.Context, value: bool) -> bool:
    # The error handler in main.py needs it for every command.
    context.meta[JSON_KEY] = value
    return value


AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document for scripts.", callback=_remember_json, is_eager=True),
]
ModelArgument = Annotated[str, typer.Argument(metavar="ORG/SLUG", help="A model, for example acme/triage.")]
VersionArgument = Annotated[str, typer.Argument(metavar="ORG/SLUG@N", help="A version, for example acme/triage@3.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; raises Refused without a terminal, CliError if declined."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{question} Standard input is not a terminal: add --yes to confirm", field="yes")
    if not typer.confirm(question, err=True):
        raise CliError("nothing was changed", code="declined")
