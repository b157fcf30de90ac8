"""The audit of a fault run: each prediction by its id, from the rows of the database, with arithmetic of its own.

It shares no code with the gateway, the sweeper or the pricing: a receipt is taken apart and verified here, a cost is
summed here. `audit` finds contradictions, one sentence each; none means that the books are right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.end_to_end.faults.audit_books import Books, Verdict
from tests.end_to_end.faults.audit_money import check_payouts
from tests.end_to_end.faults.calls import Call, Given
from tests.end_to_end.faults.clerk import Errands
from tests.end_to_end.faults.rows import Rows

CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Outage:
    """A time in which something was dead. `what`: gateway, replica, postgres …; unix seconds."""

    what: str
    began: float
    ended: float


def audit(
    rows: Rows,
    calls: Iterable[Call],
    outages: list[Outage],
    *,
    errands: Errands,
    transfers: list[dict[str, Any]],
    close_seconds: float = CLOSE_SECONDS,
    expected_incidents: Iterable[str] = (),
    payouts: bool = True,
) -> Verdict:
    """Compare the books with everything the clients were given.

    `errands`: what the clerk corrected and paid out. `transfers`: those that Stripe has. `expected_incidents`:
    prediction ids whose receipts were lies, each of which must have left one incident. `payouts`: look at them too.
    """
    verdict = Verdict()
    books = Books(rows, errands, verdict)
    by_hash = {call.body_hash: call for call in calls}
    charged_by_call: dict[str, list[str]] = defaultdict(list)
    for hold in rows.holds:
        verdict.predictions += 1
        call = by_hash.get(hold["body_hash"])
        if call is None:
            verdict.faults.append(f"{hold['id']}: no client asked for this prediction")
            continue
        net = books.check(hold)
        if net is None:
            continue
        if net > 0:
            charged_by_call[call.body_hash].append(hold["id"])
        _check_delivery(hold, net, books.usage.get(hold["id"], []), call, outages, verdict)
        _check_closing(hold, call, outages, close_seconds, verdict)
    for body_hash, ids in charged_by_call.items():
        if len(ids) > 1:
            verdict.faults.append(f"one {by_hash[body_hash].kind} call was charged {len(ids)} times: {ids}")
    _check_answers_have_holds(rows, by_hash, verdict)
    _check_incidents(rows, set(expected_incidents), verdict)
    books.check_totals()
    books.corrections.check_errands()
    if payouts:
        verdict.faults += check_payouts(rows, books.entries, errands, transfers)
    verdict.paid_out = sum(row["state"] == "paid" for row in rows.payouts)
    return verdict


def _check_delivery(
    hold: dict[str, Any], net: int, usage: list[dict[str, Any]], call: Call, outages: list[Outage], verdict: Verdict
) -> None:
    """The consumer pays for what arrived: never for more, and for all of it unless a death hid it."""
    say = verdict.faults.append
    given = next((one for one in call.given if one.prediction_id == hold["id"]), None)
    name = f"{hold['id']} ({call.kind})"
    tokens = usage[0]["completion"] if usage and net else 0
    if given is None:
        if net and call.countable:
            say(f"{name}: {tokens} tokens charged, and no answer reached the client")
        return
    if given.promised_free and net:
        say(f"{name}: told that nothing was charged, and charged {net}")
    if call.countable and net and tokens > given.tokens:
        say(f"{name}: {tokens} tokens charged, {given.tokens} arrived")
    if given.whole:
        _check_whole(name, hold, net, tokens, given, call, outages, say=say)
    elif tokens < call.tokens_at_hang_up and not _hit(call, outages, "gateway", "replica", "postgres"):
        say(f"{name}: {call.tokens_at_hang_up} tokens had arrived before the hang-up, {tokens} were charged")


def _check_whole(
    name: str,
    hold: dict[str, Any],
    net: int,
    tokens: int,
    given: Given,
    call: Call,
    outages: list[Outage],
    *,
    say: Any,
) -> None:
    """An answer that arrived whole is charged whole, at the cost that it names."""
    if not net and hold["amount"] and given.tokens:
        # A gateway that died before it could note that an answer had gone out cannot show it: the answer is free.
        if not _hit(call, outages, "gateway"):
            say(f"{name}: the whole answer arrived and is not charged ({hold['state']}, {hold['close_reason']!r})")
        return
    if tokens != given.tokens:
        say(f"{name}: {given.tokens} tokens arrived, {tokens} were charged")
    if given.told_cost is not None and given.told_cost != net:
        say(f"{name}: the answer names a cost of {given.told_cost}, {net} were charged")


def _check_closing(
    hold: dict[str, Any], call: Call, outages: list[Outage], close_seconds: float, verdict: Verdict
) -> None:
    """Every hold closes in time after its client was done, and after the database was back."""
    away = [one for one in outages if one.what == "postgres" and call.started <= one.ended <= hold["closed"]]
    waited = hold["closed"] - max([call.ended, hold["created"], *(one.ended for one in away)])
    verdict.slowest_close = max(verdict.slowest_close, waited)
    if waited > close_seconds:
        verdict.faults.append(f"{hold['id']} ({call.kind}): closed {waited:.1f} s after its client was done")


def _hit(call: Call, outages: list[Outage], *what: str) -> bool:
    """Return whether one of these was dead at some time of the call."""
    return any(one.what in what and one.began <= call.ended and one.ended >= call.started for one in outages)


def _check_answers_have_holds(rows: Rows, by_hash: dict[str, Call], verdict: Verdict) -> None:
    known = {hold["id"] for hold in rows.holds}
    for call in by_hash.values():
        for given in call.given:
            if given.whole and given.prediction_id not in known:
                verdict.faults.append(f"{given.prediction_id} ({call.kind}): answered without a hold")


def _check_incidents(rows: Rows, expected: set[str], verdict: Verdict) -> None:
    """Each lie left one incident with evidence, and no honest prediction left any."""
    found = [row["subject"] for row in rows.incidents if row["kind"] == "receipt_refused"]
    for prediction in expected - set(found):
        verdict.faults.append(f"{prediction}: its receipt was a lie, and no incident tells of it")
    for prediction in sorted(set(found) - expected):
        verdict.faults.append(f"{prediction}: an incident about an honest receipt")
    if len(found) != len(set(found)):
        verdict.faults.append("one lie left several incidents")
    others = sorted({row["kind"] for row in rows.incidents} - {"receipt_refused"})
    if others:
        verdict.faults.append(f"incidents of other kinds: {others}")
