"""keys list, keys create, keys rotate and keys revoke."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from creator_cli import consumption
from creator_cli.commands.options import AsJson, Yes, confirm
from creator_cli.names import parse_dollars
from creator_cli.output import Output
from creator_cli.session import open_api
from creator_cli.settings import load_settings

keys = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List, create, rotate and revoke your organization's API keys; that needs the scope account.",
)
KeyId = Annotated[UUID, typer.Argument(metavar="ID", help="The key's id, as keys list shows it.")]


@keys.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """List the keys, newest first; never the keys themselves.

    Example: intarsia keys list
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        found = consumption.api_keys(api)
    if as_json:
        out.document(found)
        return
    rows = [
        (row["id"], row["name"], ", ".join(row["scopes"]), str(row.get("last_used_at") or "never")[:16], _state(row))
        for row in found
    ]
    out.table(("id", "name", "scopes", "last used", "state"), rows)


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="What will use the key.")],
    scope: Annotated[list[str], typer.Option(help="predict, publish, account or read; repeatable.")] = ["predict"],  # noqa: B006
    days: Annotated[int | None, typer.Option(min=1, max=3650, help="Days until it ends; never if left out.")] = None,
    monthly_limit: Annotated[str | None, typer.Option(help="Dollars that it may spend in a month.")] = None,
    model: Annotated[list[str], typer.Option(metavar="ORG/SLUG", help="It may call only this; repeatable.")] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Create a key and print it, this once.

    Example: intarsia keys create billing-service --monthly-limit 20
    """
    ends = None if days is None else (datetime.now(UTC) + timedelta(days=days)).isoformat()
    limit = None if monthly_limit is None else parse_dollars(monthly_limit, decimals=9, field="monthly-limit")
    with open_api(load_settings()) as api:
        made = consumption.create_key(
            api, name=name, scopes=scope, expires_at=ends, monthly_limit_nano_usd=limit, models=model
        )
    _show_once(made, Output(as_json=as_json))


@keys.command()
def rotate(
    key: KeyId,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=168, help="For so many hours the old key works on; 0 ends it now.")
    ] = 24,
    as_json: AsJson = False,
) -> None:
    """Replace a key by one like it and print that, this once; the old one works on for a while.

    Example: intarsia keys rotate 00000000-0000-0000-0000-000000000009
    """
    with open_api(load_settings()) as api:
        made = consumption.rotate_key(api, key, overlap_seconds=int(overlap_hours * 3600))
    _show_once(made, Output(as_json=as_json))


@keys.command()
def revoke(key: KeyId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Revoke a key: it stops working within five seconds, for good.

    Example: intarsia keys revoke 00000000-0000-0000-0000-000000000009 --yes
    """
    confirm(f"Revoke the key {key}? Programs that use it stop working.", yes=yes)
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        api.delete_key(key)
    if as_json:
        out.document({"id": str(key), "revoked": True})
    out.say(f"{key} is revoked")


def _show_once(made: dict[str, Any], out: Output) -> None:
    if out.as_json:
        out.document(made)
        return
    out.say(made["key"])
    out.note("This is the only time that the key is shown: copy it now.")


def _state(row: dict[str, Any]) -> str:
    if row.get("revoked_at"):
        return "revoked"
    ends = row.get("expires_at")
    if ends and datetime.fromisoformat(ends) <= datetime.now(UTC):
        return "expired"
    return f"until {ends[:10]}" if ends else "active"
