"""usage, logs and wallet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from creator_cli import consumption
from creator_cli.commands.options import AsJson
from creator_cli.consumption import GROUPS
from creator_cli.errors import Refused
from creator_cli.names import parse_model_name
from creator_cli.output import Output
from creator_cli.session import load_session, open_api
from creator_cli.settings import load_settings
from protocol.money import usd

FOLLOW_SECONDS = 5.0
_SEEN = 2_000  # predictions that `logs --follow` remembers


def usage(
    days: Annotated[int, typer.Option(min=1, max=366, help="Days up to today (UTC).")] = 30,
    model: Annotated[str | None, typer.Option(metavar="ORG/SLUG", help="Only this model.")] = None,
    key: Annotated[UUID | None, typer.Option(help="Only this API key and its rotations, by id.")] = None,
    by: Annotated[str, typer.Option(help="day, model, key, or several with commas.")] = "model",
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write single predictions to a file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what your organization spent, by model, day or key; or write its predictions to a CSV file.

    Example: intarsia usage --days 7 --by day,model
    """
    out = Output(as_json=as_json)
    groups = tuple(dict.fromkeys(by.split(",")))
    if not set(groups) <= set(GROUPS):
        raise Refused(f"{by!r} must name {', '.join(GROUPS)}, with commas", field="by")
    name = None if model is None else str(parse_model_name(model))
    last = datetime.now(UTC).date()
    first = last - timedelta(days=days - 1)
    with open_api(load_settings()) as api:
        if csv is not None:
            data = consumption.usage_file(api, first=first, last=last, model=name, key=key)
            csv.write_bytes(data)
            rows = max(0, data.count(b"\n") - 1)
            if as_json:
                out.document({"file": str(csv), "predictions": rows})
            out.say(f"{csv}: {rows} predictions, {first} to {last}")
            return
        found = consumption.usage_groups(api, first=first, by=groups, model=name, key=key)
    total = sum(row["cost_nano_usd"] for row in found)
    if as_json:
        out.document({"first": str(first), "last": str(last), "cost_nano_usd": total, "groups": found})
        return
    fields = {"day": "day", "model": "model", "key": "key_id"}
    lines = [
        (
            *(row[fields[name]] or "–" for name in GROUPS if name in groups),
            row["predictions"],
            row["prompt_tokens"],
            row["completion_tokens"],
            usd(row["cost_nano_usd"]),
        )
        for row in found
    ]
    sums = ("predictions", "tokens in", "tokens out", "cost")
    if lines:
        out.table((*(name for name in GROUPS if name in groups), *sums), lines, right=sums)
    out.say(f"{usd(total)} from {first} to {last}")
    out.say("next: intarsia logs" if lines else f"next: {load_session(load_settings()).url}/docs/start-consumer")


def logs(
    model: Annotated[
        str | None, typer.Argument(metavar="[ORG/SLUG]", help="One of your own models; your predictions if left out.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=200, help="The newest so many predictions.")] = 20,
    days: Annotated[int, typer.Option(help="Of a model: 1, 7 or 30 days.")] = 1,
    version: Annotated[int | None, typer.Option(min=1, help="Of a model: its version; the newest if left out.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C; with --json, a document a line.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show your newest predictions, or how one of your own models is called: sums by the hour, never by whom.

    Example: intarsia logs --follow
    """
    out = Output(as_json=as_json)
    if days not in (1, 7, 30):
        raise Refused("--days must be 1, 7 or 30", field="days")
    rows = _predictions(count, follow) if model is None else _blocks(model, days, version, follow)
    line = _prediction_line if model is None else _block_line
    if follow:
        for row in rows:
            typer.echo(json.dumps(row)) if as_json else out.say(line(row))
        return
    found = list(rows)
    if as_json:
        out.document(found)
        return
    for row in found:
        out.say(line(row))
    if model is None:
        out.say("next: intarsia receipt get PREDICTION -o receipt.json" if found else "no predictions yet")
    elif not found:
        out.say("no hour with enough calls by enough customers yet")


def wallet(as_json: AsJson = False) -> None:
    """Show your organization's credit.

    Example: intarsia wallet
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        found, url = consumption.wallet(api), api.url
    if as_json:
        out.document(found)
        return
    out.facts(
        [
            ("available", usd(found["available_nano_usd"])),
            ("held for predictions that run", usd(found.get("held_nano_usd", 0))),
        ]
    )
    out.say(f"next: {url}/dashboard/wallet to top up, or intarsia usage")


def _predictions(count: int, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield the newest predictions, the oldest of them first; with `follow`, those that come after, for ever."""
    seen: dict[str, None] = {}
    with open_api(load_settings()) as api:
        while True:
            for row in consumption.latest_predictions(api, count=200 if seen else count):
                if row["prediction_id"] not in seen:
                    seen[row["prediction_id"]] = None
                    yield row
            if not follow:
                return
            for old in list(seen)[:-_SEEN]:
                del seen[old]
            time.sleep(FOLLOW_SECONDS)


def _blocks(model: str, days: int, version: int | None, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield the blocks of time of one model; with `follow`, those that are counted later, for ever."""
    name, last = parse_model_name(model), ""
    with open_api(load_settings()) as api:
        while True:
            for block in consumption.model_in_use(api, name, days=days, version=version)["blocks"]:
                if block["start"] > last:
                    last = block["start"]
                    yield block
            if not follow:
                return
            time.sleep(FOLLOW_SECONDS)


def _prediction_line(row: dict[str, Any]) -> str:
    tokens = f"{row.get('prompt_tokens', 0)} in, {row.get('completion_tokens', 0)} out"
    ended = "refunded" if row.get("refunded") else row.get("finish_reason")
    cost = usd(int(row.get("cost_nano_usd", 0)), 9)
    return f"{str(row.get('created_at'))[:19]}  {row['prediction_id']}  {row.get('model')}  {tokens}  {cost}  {ended}"


def _block_line(block: dict[str, Any]) -> str:
    refused = ", ".join(f"{code} {count}" for code, count in sorted((block.get("refused") or {}).items()))
    until = str(block.get("end"))[11:16]
    line = f"{str(block['start'])[:16]} to {until}  {block.get('calls')} calls  {block.get('failures')} failed"
    return f"{line}  refused: {refused}" if refused else line
