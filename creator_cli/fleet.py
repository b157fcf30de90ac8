"""The `intarsia-fleet` command: the fleet of a platform, for its staff.

It reads the control API with the login of `intarsia login`, or with INTARSIA_URL and INTARSIA_TOKEN.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from creator_cli.boundary import ErrorBoundary
from creator_cli.commands.options import AsJson

app = typer.Typer(
    cls=ErrorBoundary,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would show local variables: tokens among them
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def root() -> None:
    """Look at the replicas of a platform, as its staff do on the page of the fleet."""


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Seconds between two looks with --watch.")] = 2.0,
    model: Annotated[
        str | None, typer.Option(metavar="ORG/SLUG", help="Show where this model's adapters are in memory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show pools, replicas and the last events. The exit code is 1 when a pool needs a person.

    Example: intarsia-fleet status --model acme/triage
    """
    # Imported here: --help answers without HTTP and tables.
    from creator_cli.fleet_view import fleet_view
    from creator_cli.output import Output
    from creator_cli.session import open_api
    from creator_cli.settings import load_settings

    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        answer = api.fleet(model)
        if not watch:
            if as_json:
                out.document(answer)
            else:
                out.show(fleet_view(answer))
            raise typer.Exit(0 if answer.get("healthy") is True else 1)
        _watch(lambda: api.fleet(model), answer, every, as_json=as_json)


def _watch(look: Any, answer: dict[str, Any], every: float, *, as_json: bool) -> None:
    """Show each look until Ctrl-C: in place, or as one line of JSON each."""
    if as_json:
        while True:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
            time.sleep(every)
            answer = look()
    from rich.live import Live

    from creator_cli.fleet_view import fleet_view

    with Live(fleet_view(answer), auto_refresh=False, screen=sys.stdout.isatty()) as live:
        while True:
            time.sleep(every)
            live.update(fleet_view(look()), refresh=True)


def main() -> None:
    """Run the `intarsia-fleet` command."""
    app(prog_name="intarsia-fleet")
