"""payouts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from creator_cli.commands.options import AsJson, Yes, confirm
from creator_cli.errors import Refused
from creator_cli.names import parse_dollars
from creator_cli.output import Output
from creator_cli.session import open_api
from creator_cli.settings import load_settings
from protocol.money import usd


def payouts(
    now: Annotated[bool, typer.Option("--now", help="Pay out everything that is payable.")] = False,
    amount: Annotated[str | None, typer.Option(help="With --now: so many dollars instead.")] = None,
    setup: Annotated[bool, typer.Option("--setup", help="Print the address of Stripe's page for your bank.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show your payouts and what is payable; set payouts up, or ask for one.

    Example: intarsia payouts --now
    """
    if amount is not None and not now:
        raise Refused("--amount goes with --now", field="amount")
    if now and setup:
        raise Refused("--now and --setup cannot be used together", field="setup")
    out = Output(as_json=as_json)
    cents = None if amount is None else parse_dollars(amount, decimals=2, field="amount")
    if setup:
        _set_up(out)
    elif now:
        _pay_out(out, cents, yes=yes)
    else:
        _show(out)


def _set_up(out: Output) -> None:
    with open_api(load_settings()) as api:
        url = api.open_payout_setup()
    if out.as_json:
        out.document({"url": url})
    out.say(url)


def _pay_out(out: Output, cents: int | None, *, yes: bool) -> None:
    what = "everything that is payable" if cents is None else usd(cents, 2)
    confirm(f"Pay out {what} to your bank?", yes=yes)
    with open_api(load_settings()) as api:
        payout = api.start_payout(cents)
    if out.as_json:
        out.document(payout)
    out.say(f"{usd(payout['amount_cents'], 2)} is on its way to your bank")


def _show(out: Output) -> None:
    with open_api(load_settings()) as api:
        overview, found = api.payouts()
    if out.as_json:
        out.document({**overview, "payouts": found})
        return
    account = overview.get("account") or {}
    out.facts(
        [
            ("in reserve", usd(overview.get("reserve_nano_usd", 0))),
            ("payable now", usd(overview["payable_nano_usd"])),
            ("on its way", usd(overview.get("in_transit_nano_usd", 0))),
            ("account at Stripe", account.get("state", "none")),
            ("next by schedule", overview.get("next_payout_on")),
        ]
    )
    if not account:
        out.say("next: intarsia payouts --setup")
    elif overview["payable_nano_usd"]:
        out.say("next: intarsia payouts --now")
    for freeze in overview.get("freezes", []):
        out.say(f"frozen: {freeze.get('message', '')}")
    if found:
        out.say("")
        out.table(("started", "amount", "state", "reason"), [_row(line) for line in found], right=("amount",))


def _row(line: dict[str, Any]) -> tuple[object, ...]:
    reason = line.get("frozen_by") or line.get("failure_code") or ""
    return str(line.get("created_at", ""))[:10], usd(int(line.get("amount_cents", 0)), 2), line.get("state"), reason
