"""rollout, rollback, deprecate."""

from __future__ import annotations

from typing import Annotated

import typer

from creator_cli.commands.options import AsJson, VersionArgument, Yes, confirm
from creator_cli.commands.reviews import say_review
from creator_cli.control_api import ControlApi
from creator_cli.errors import ApiError, CliError, Refused
from creator_cli.names import parse_model_name, parse_time, parse_version_name
from creator_cli.output import Output
from creator_cli.releases import find_version
from creator_cli.reviews import hint_appeal
from creator_cli.rollouts import Served
from creator_cli.session import open_api
from creator_cli.settings import load_settings

_NAME = typer.Argument(metavar="ORG/SLUG[@N]", help="A version, for example acme/triage@3; or a model, to show it.")


def rollout(
    name: Annotated[str, _NAME],
    percent: Annotated[int | None, typer.Argument(min=0, max=100, help="Percent of the customers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Give a version to a part of the customers, 1 to 100 percent; without a percentage, compare both versions.

    Example: intarsia rollout acme/triage@3 10
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        if percent is None:
            model = name.partition("@")[0]
            _show(model, api.served(parse_model_name(model)), out)
            return
        found = find_version(api, name)
        try:
            served = api.set_rollout(found.id, percent=percent)
        except ApiError as error:
            hint_appeal(error, name)
            raise
        after = api.version(found.id) if found.state == "verified" else found
    _show(found.model, served, out)
    if after.state == "in_review":
        say_review(after, out)


def rollback(name: Annotated[str, _NAME], as_json: AsJson = False) -> None:
    """Take a rollout back, or make an earlier version the default again: intarsia rollback ORG/SLUG@N.

    Example: intarsia rollback acme/triage
    """
    out = Output(as_json=as_json)
    model = name.partition("@")[0]
    with open_api(load_settings()) as api:
        served = api.served(parse_model_name(model))
        if "@" in name:
            served = api.make_default(find_version(api, name).id)
        elif served.rollout is not None:
            served = api.set_rollout(find_version(api, f"{model}@{served.rollout.version}").id, percent=0)
        else:
            served = _back(api, model, served)
    _show(model, served, out)


def deprecate(
    version: VersionArgument,
    on: Annotated[str | None, typer.Option(help="The day (UTC) on which it ends, for example 2027-03-01.")] = None,
    replacement: Annotated[
        int | None, typer.Option(min=1, help="The number of the version to call instead; the default if left out.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take the announcement back.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Announce the end of a version: its customers are told, and it is retired on that day.

    Example: intarsia deprecate acme/triage@1 --on 2027-03-01 --replacement 3
    """
    out = Output(as_json=as_json)
    parse_version_name(version)
    if cancel == (on is not None):
        raise Refused("say either the day with --on, or --cancel", field="on")
    with open_api(load_settings()) as api:
        found = find_version(api, version)
        if on is None:
            answer = api.keep_version(found.id)
        else:
            ends_at = parse_time(on, field="on").isoformat()
            confirm(f"Announce that {version} ends on {on}? Customers who call it are told.", yes=yes)
            answer = api.deprecate_version(found.id, ends_at=ends_at, replacement=replacement)
    if as_json:
        out.document({**found.to_json(), "ends_at": answer["ends_at"], "replacement": answer["replacement"]})
    elif on is None:
        out.say(f"{version} stays; whoever was told of its end is told")
    else:
        out.say(f"{version} ends on {on} (UTC); customers who called it in the last 30 days are told")
        out.say(f"next: intarsia deprecate {version} --cancel takes it back")


def _back(api: ControlApi, model: str, served: Served) -> Served:
    if served.before is None:
        raise CliError(
            f"nothing of {model} is rolled out; name the version that everybody gets again",
            hint=f"intarsia rollback {model}@N",
            code="no_rollout",
        )
    return api.make_default(find_version(api, f"{model}@{served.before}").id)


def _show(model: str, served: Served, out: Output) -> None:
    if out.as_json:
        out.document(dict(served.answer))
        return
    found = served.rollout
    out.say(f"{model} means version {served.default}" if served.default else f"nothing of {model} is for sale")
    if found is None:
        return
    out.say(f"version {found.version} is rolled out to {found.percent} % of the customers")
    if served.sides:
        rows = [
            (
                side["version"],
                side["calls"],
                _number(side["error_percent"], "%"),
                _number(side["p95_ms"], "ms"),
                _number(side["nano_usd_per_call"], "n$"),
                f"{side['thumbs_up'] or 0} / {side['thumbs_down'] or 0}",
            )
            for side in served.sides
        ]
        columns = ("version", "calls", "errors", "p95", "cost per call", "thumbs")
        out.table(columns, rows, right=columns)
    further = min(100, 2 * found.percent)
    out.say(f"next: intarsia rollout {model}@{found.version} {further}, or intarsia rollback {model}")


def _number(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,.4g} {unit}"
