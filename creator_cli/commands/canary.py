"""canary add and canary check."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from creator_cli.canaries import (
    FOUND_BELOW,
    MAX_ROWS,
    CanaryStore,
    check_canaries,
    choose,
    make_canaries,
    require_canaries,
    training_row,
)
from creator_cli.commands.options import AsJson, ModelArgument
from creator_cli.endpoints import Endpoint
from creator_cli.errors import Refused
from creator_cli.names import parse_model_name
from creator_cli.output import Output
from creator_cli.private_files import write_private
from creator_cli.settings import load_settings

canary = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Plant secret rows in your training set, and find stolen weights by them.",
)


@canary.command()
def add(
    model: ModelArgument,
    answer: Annotated[list[str], typer.Option(help="An answer of the task, as the model writes it; two or more.")],
    rows: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Rows to make.")] = 40,
    like: Annotated[str, typer.Option(help="A message of the task, with {} where the secret part goes.")] = "{}",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the training rows here (0600); printed if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make secret rows for your training set, and keep them on this machine. Nothing is uploaded.

    Example: intarsia canary add acme/triage --like "POS {} Leeds" --answer groceries --answer dining -o canaries.jsonl
    """
    out = Output(as_json=as_json)
    name = parse_model_name(model)
    store = CanaryStore(load_settings(), name)
    known = store.load()
    if len(known) + rows > MAX_ROWS:
        raise Refused(f"{name} has {len(known)} canaries; {MAX_ROWS} is the most", field="rows")
    made = make_canaries(rows=rows, answers=answer, like=like)
    store.save([*known, *made])
    lines = "".join(f"{training_row(one)}\n" for one in made)
    if output:
        write_private(output, lines.encode())
    if as_json:
        document = {"model": str(name), "rows": len(made), "kept": str(store.path), "training_rows": lines.splitlines()}
        out.document(document)
        return
    if output is None:
        out.say(lines.rstrip())
    out.note(f"{len(made)} rows are kept in {store.path}; train with them, and show them to nobody")


@canary.command()
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="An OpenAI-compatible API, for example https://host/v1.")],
    of: Annotated[str, typer.Option(metavar="ORG/SLUG", help="Your model, whose canaries are asked.")],
    model: Annotated[str | None, typer.Option(help="The name of the model there; yours if left out.")] = None,
    rows: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Rows to ask, and to show there.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Ask an endpoint for the canaries of a model, and say whether it knows them. Its key: INTARSIA_CANARY_KEY.

    Example: intarsia canary check https://api.example.com/v1 --of acme/triage --model their-model
    """
    out = Output(as_json=as_json)
    settings = load_settings()
    name = parse_model_name(of)
    store = CanaryStore(settings, name)
    known = store.load()
    require_canaries(known, name)
    places = choose(known, rows)
    with (
        Endpoint(url, model=model or str(name), key=settings.canary_key) as endpoint,
        out.waiting(f"asking {len(places)} canaries"),
    ):
        finding = check_canaries(known, places, endpoint.ask, store.save)
    if as_json:
        out.document({**asdict(finding), "found": finding.found})
        return
    out.facts(
        [
            ("asked", finding.asked),
            ("as planted", finding.as_planted),
            ("by chance", f"p = {finding.p_value:.2g}"),
        ]
    )
    if finding.found:
        out.say(f"it knows your canaries: the weights of {name}, or a model that was trained on its rows")
    else:
        out.say(f"no sign of your weights: chance explains this (a finding needs p < {FOUND_BELOW:g})")
