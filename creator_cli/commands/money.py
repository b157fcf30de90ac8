"""earnings."""

from __future__ import annotations

from typing import Any

from creator_cli.commands.options import AsJson
from creator_cli.output import Output
from creator_cli.session import open_api
from creator_cli.settings import load_settings
from protocol.money import usd


def earnings(as_json: AsJson = False) -> None:
    """Show what your models earned: in total, by model and by day (UTC).

    Example: intarsia earnings
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        found = api.earnings()
    if as_json:
        out.document(found)
        return
    out.facts(
        [
            ("earned", usd(found["total_nano_usd"])),
            ("in reserve", usd(found.get("reserve_nano_usd", 0))),
            ("payable now", usd(found.get("payable_nano_usd", 0))),
            ("owed to the platform", usd(found.get("owed_nano_usd", 0))),
            ("predictions", found.get("predictions", 0)),
        ]
    )
    for group, what in (("by_model", "model"), ("by_day", "day")):
        rows = [_row(line, what) for line in found.get(group, [])]
        if rows:
            out.say("")
            out.table((what, "predictions", "consumers", "earned"), rows, right=("predictions", "consumers", "earned"))
    out.say("next: intarsia payouts")


def _row(line: dict[str, Any], what: str) -> tuple[object, ...]:
    earned = usd(int(line.get("creator_nano_usd", 0)), 9)
    return line.get(what) or "–", line.get("predictions"), line.get("consumers"), earned
