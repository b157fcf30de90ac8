"""eval push, eval run and eval list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from creator_cli.against_peft import replica_facts
from creator_cli.commands.options import AsJson, ModelArgument, Yes, confirm
from creator_cli.control_api import ControlApi
from creator_cli.errors import ApiError, CliError, Refused
from creator_cli.eval_records import EvalRun
from creator_cli.evals import check_rows, figure_of, find_set, make_scorer, push_set, wait_for_run
from creator_cli.names import ModelName, parse_dollars, parse_model_name
from creator_cli.output import Output, size_text
from creator_cli.records import Version
from creator_cli.session import load_session, open_api
from creator_cli.settings import load_settings
from protocol.money import usd
from protocol.reference import REFERENCE_KEY

eval = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Measure a version on the platform with rows that are sealed on this machine.",
)
PAYMENT_REQUIRED = 402
# As the platform has it: an accuracy can be known before a version is for sale.
MEASURED = ("verified", "in_review", "published")
VersionOption = Annotated[
    int | None,
    typer.Option("--version", min=1, help="A verified version; if left out, the one for sale, or the newest."),
]
Budget = Annotated[str | None, typer.Option(help="Dollars that the run may cost at most; its worst case if left out.")]
Wait = Annotated[float, typer.Option(min=0, max=86400, help="Seconds to wait for the figure.")]


@eval.command()
def push(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="JSONL: message or messages, and expected.")],
    model: Annotated[str, typer.Option(metavar="ORG/SLUG", help="One of your models.")],
    scorer: Annotated[str, typer.Option(help="json, fields, label, regex or number.")],
    field: Annotated[list[str], typer.Option(help="The field that is judged; several for the scorer fields.")] = [],  # noqa: B006
    tolerance: Annotated[float | None, typer.Option(help="Of the scorer number.")] = None,
    version: VersionOption = None,
    budget: Budget = None,
    wait: Wait = 1800,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Check rows, seal them on this machine, upload them, and measure a version with them at your expense.

    Example: intarsia eval push rows.jsonl --model acme/triage --scorer label --field category
    """
    out = Output(as_json=as_json)
    settings = load_settings()
    name, judge = parse_model_name(model), make_scorer(scorer, field, tolerance)
    with open_api(settings) as api:
        measured = _measurable(api, name, version)
        checked = check_rows(rows, judge, measured.output_schema)
        pushed = push_set(api, settings, name, checked, out)
        out.note(f"set {pushed.number} of {name}: {checked.count} rows, {size_text(checked.package_size)} sealed")
        _measure(api, name, pushed.id, measured.number, budget, wait, yes=yes, out=out)


@eval.command()
def run(
    model: ModelArgument,
    set_number: Annotated[int | None, typer.Option("--set", min=1, help="A set; the newest if left out.")] = None,
    version: VersionOption = None,
    budget: Budget = None,
    guard: Annotated[
        str | None, typer.Option(metavar="ORG/SLUG", help="Do not measure: set the threshold of this guard.")
    ] = None,
    wait: Wait = 1800,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Measure a version with a set that is on the platform already, or put a guard before the model.

    Example: intarsia eval run acme/triage --set 1
    """
    out = Output(as_json=as_json)
    name = parse_model_name(model)
    with open_api(load_settings()) as api:
        _measure(api, name, find_set(api, name, set_number), version, budget, wait, guard=guard, yes=yes, out=out)


@eval.command("list")
def list_runs(model: ModelArgument, as_json: AsJson = False) -> None:
    """List the runs of a model, newest first, failed ones with their reason.

    Example: intarsia eval list acme/triage
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        runs = list(api.eval_runs(parse_model_name(model)))
    if as_json:
        out.document([found.to_json() for found in runs])
        return
    rows = [
        (
            f"{found.created_at:%Y-%m-%d %H:%M}",
            found.version,
            found.set,
            found.state,
            f"{found.calls_done} of {found.calls}",
            usd(found.spent_nano_usd),
            found.reason,
        )
        for found in runs
    ]
    out.table(("begun", "version", "set", "state", "calls", "spent", "reason"), rows, right=("version", "set", "spent"))


def _measurable(api: ControlApi, model: ModelName, number: int | None) -> Version:
    """Return the version that is named; else the one for sale, else the newest that could be. Raises CliError."""
    if number is None:
        listed = api.model(model)
        number = None if listed is None else listed.newest_version
    for found in api.versions(model):
        if found.state in MEASURED and number in (None, found.number):
            return found
    raise CliError(
        f"{model} has no such version that is verified",
        hint=f"intarsia versions {model}, then: intarsia push DIR --model {model}",
    )


def _measure(
    api: ControlApi,
    model: ModelName,
    set_id: UUID,
    version: int | None,
    budget: str | None,
    wait: float,
    *,
    yes: bool,
    out: Output,
    guard: str | None = None,
) -> None:
    number, worst = api.eval_quote(set_id, version, guard)
    limit = None if budget is None else parse_dollars(budget, decimals=9, field="budget")
    if limit is not None and limit < 1:
        raise Refused("a budget is more than nothing", field="budget")
    most = usd(worst if limit is None else min(limit, worst))
    confirm(f"The run costs at most {most}, of which you earn your share. Start it?", yes=yes)
    if yes:
        out.note(f"the run costs at most {most}")
    try:
        run = api.start_eval_run(set_id, version=number, budget_nano_usd=limit, guard=guard)
    except ApiError as error:
        if error.status == PAYMENT_REQUIRED:  # the set is there: to push it again would make another one
            error.hint = f"{_site()}/dashboard/wallet to top up, then: intarsia eval run {model}"
        raise
    if wait == 0:
        _show(run, {}, out, {})
        return
    run = wait_for_run(api, run, wait, out)
    if guard is not None:
        _show_guard(run, api.model_guard(parse_model_name(run.model)), out)
    else:
        _show(run, figure_of(api, run), out, _measurable(api, parse_model_name(run.model), run.version).report)


def _site() -> str:
    return load_session(load_settings()).url


def _show_guard(run: EvalRun, found: dict[str, Any], out: Output) -> None:
    if out.as_json:
        out.document({"run": run.to_json(), "guard": found})
        return
    out.say(f"{found['guard']}@{found['version']} guards {run.model} from now on")
    facts = [
        ("threshold", f"{found['threshold_milli'] / 1000:.3f} (log-odds)"),
        ("flagged", f"{found['flagged']} of {found['rows']} honest rows"),
        ("spent", usd(run.spent_nano_usd)),
    ]
    out.facts(facts)


def _show(run: EvalRun, figure: dict[str, Any], out: Output, report: Mapping[str, Any]) -> None:
    if out.as_json:
        document = {"run": run.to_json(), "evaluation": figure or None, "peft": report.get(REFERENCE_KEY)}
        out.document(document)
        return
    out.say(f"{run.model}@{run.version}, set {run.set}: {run.state}")
    if not figure:
        return
    count, low, high = figure["rows"], figure["low"], figure["high"]
    facts: list[tuple[str, object]] = [
        ("right", f"{figure['correct']} of {count} ({100 * figure['correct'] / count:.1f} %)"),
        ("95 % interval", f"{100 * low:.1f} to {100 * high:.1f} %"),
        ("base", f"{figure['base_correct']} of {count} ({100 * figure['base_correct'] / count:.1f} %)"),
    ]
    if figure["macro_f1_bps"] is not None:
        facts.append(("macro F1", f"{figure['macro_f1_bps'] / 10_000:.3f}"))
    facts += replica_facts(report)
    facts += [("spent", usd(run.spent_nano_usd)), ("receipts", f"{_site()}/evaluations/{run.id}")]
    out.facts(facts)
