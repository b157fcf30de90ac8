"""The audit of a fault run: each prediction by its id, from the rows of the database, with arithmetic of its own.

It shares no code with the gateway, the sweeper or the pricing: a receipt is taken apart and verified here, a cost is
summed here. `audit` returns sentences, one for each contradiction; none means that the books are right.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.end_to_end.faults.calls import Call, Given
from tests.end_to_end.faults.rows import Rows

CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Outage:
    """A time in which something was dead. `what`: gateway, replica, postgres …; unix seconds."""

    what: str
    began: float
    ended: float


@dataclass
class Verdict:
    """The audit's result: `faults` must be empty. The rest is for the report."""

    faults: list[str] = field(default_factory=list)
    predictions: int = 0
    charged: int = 0
    refunded: int = 0
    free: int = 0
    charged_nano_usd: int = 0
    slowest_close: float = 0.0


def audit(
    rows: Rows,
    calls: Iterable[Call],
    outages: list[Outage],
    *,
    close_seconds: float = CLOSE_SECONDS,
    expected_incidents: Iterable[str] = (),
) -> Verdict:
    """Compare the books with everything the clients were given.

    `expected_incidents`: prediction ids whose receipts were lies, each of which must have left one incident.
    """
    verdict = Verdict()
    books = _Books(rows, verdict)
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
    return verdict


class _Books:
    """Hold, usage row, receipt and ledger of each prediction must tell one story."""

    def __init__(self, rows: Rows, verdict: Verdict) -> None:
        self._rows, self._verdict = rows, verdict
        self._keys = {row["id"]: row for row in rows.replicas}
        self.usage: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows.usage:
            self.usage[row["id"]].append(row)
        self._entries: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows.entries:
            self._entries[row["id"]].append(row)
        self._charges: dict[str, list[int]] = defaultdict(list)
        self._reversals: dict[int, list[int]] = defaultdict(list)
        for transaction, lines in self._entries.items():
            if lines[0]["kind"] == "prediction":
                self._charges[lines[0]["reference"]].append(transaction)
            if lines[0]["corrects_id"] is not None:
                self._reversals[lines[0]["corrects_id"]].append(transaction)

    def check(self, hold: dict[str, Any]) -> int | None:
        """Return the nano-dollars that this prediction cost its consumer in the end; None if it is still open."""
        say = self._verdict.faults.append
        usage, charges = self.usage.get(hold["id"], []), self._charges.get(hold["id"], [])
        if hold["state"] == "open":
            say(f"{hold['id']}: still open")
            return None
        if hold["state"] == "released":
            if usage or charges:
                say(f"{hold['id']}: released, but it has {len(usage)} usage rows and {len(charges)} charges")
            self._verdict.free += 1
            return 0
        cost = hold["cost"]
        if len(usage) != 1 or len(charges) != (1 if cost else 0):
            say(f"{hold['id']}: settled with {len(usage)} usage rows and {len(charges)} charges")
            return int(cost)
        self._check_usage(hold, usage[0])
        if not cost:
            return 0
        lines = self._entries[charges[0]]
        found = sorted((line["account"], line["amount"]) for line in lines)
        payees = cost * hold["payees_bps"] // 10_000  # one payee: the maker of the sample
        shares = [("creator_reserve", payees), ("platform_revenue", cost - payees)]
        expected = sorted([("customer_credit", -cost), *((kind, share) for kind, share in shares if share)])
        if found != expected:
            say(f"{hold['id']}: entries {found}, not {expected}")
        undone = self._reversals.get(charges[0], [])
        if not undone:
            self._verdict.charged += 1
            self._verdict.charged_nano_usd += cost
            return int(cost)
        back = sorted((line["account_id"], -line["amount"]) for line in self._entries[undone[0]])
        if len(undone) != 1 or back != sorted((line["account_id"], line["amount"]) for line in lines):
            say(f"{hold['id']}: {len(undone)} reversals, or one that is not the exact negative")
        self._verdict.refunded += 1
        return 0

    def _check_usage(self, hold: dict[str, Any], usage: dict[str, Any]) -> None:
        say = self._verdict.faults.append
        receipt = self._receipt(hold, usage["receipt"])
        if receipt is None:
            return
        completion = receipt["completion_tokens"]
        if hold["delivered_tokens"] is not None:
            completion = min(completion, hold["delivered_tokens"])
        told = (receipt["prompt_tokens"], receipt["cached_tokens"], completion)
        charged = (usage["prompt"], usage["cached"], usage["completion"])
        if told != charged:
            say(f"{hold['id']}: {charged} tokens were charged, receipt and delivery say {told}")
        prompt, cached, completion = charged
        pico = (
            (prompt - cached) * hold["input_price"] + cached * hold["cached_price"] + completion * hold["output_price"]
        )
        gross = -(-(pico + hold["flat_price"] * 1000) * hold["class_bps"] // 10**7)
        cost = min(hold["amount"], gross - min(gross, hold["allowance"]))
        booked = (usage["cost"], hold["cost"])
        if booked != (cost, cost):
            say(f"{hold['id']}: booked {booked}, receipt times price is {cost}")

    def _receipt(self, hold: dict[str, Any], token: str) -> dict[str, Any] | None:
        """Return the claims of a receipt that its signer may have given for exactly this attempt."""
        say = self._verdict.faults.append
        try:
            head, body, signature = token.split(".")
            kid = json.loads(_unbase64(head))["kid"]
            claims: dict[str, Any] = json.loads(_unbase64(body))
            signer = self._keys[kid]
            key = Ed25519PublicKey.from_public_bytes(bytes(signer["receipt_public_key"]))
            key.verify(_unbase64(signature), f"{head}.{body}".encode())
        except (ValueError, KeyError, InvalidSignature) as error:
            say(f"{hold['id']}: charged on a receipt that does not verify ({type(error).__name__})")
            return None
        dispatched = self._keys.get(hold["replica_id"])
        later_boot = (
            dispatched is not None
            and signer["name"] == dispatched["name"]
            and signer["registered_at"] > dispatched["registered_at"]
            and claims["finish_reason"] == "interrupted"
        )
        sane = 0 <= claims["cached_tokens"] <= claims["prompt_tokens"] <= hold["max_prompt_tokens"]
        rules = {
            "prediction": claims["jti"] == hold["id"],
            "attempt": claims["attempt"] == hold["attempt"],
            "replica": claims["replica_id"] == hold["replica_id"],
            "signer": kid == hold["replica_id"] or later_boot,
            "adapter": claims["adapter"] == hold["adapter"] == hold["sold_adapter"],
            "base": claims["base"] == hold["base"] == hold["sold_base"],
            "tokens": sane and 0 <= claims["completion_tokens"] <= hold["max_tokens"],
        }
        for rule in (name for name, kept in rules.items() if not kept):
            say(f"{hold['id']}: charged on a receipt that breaks the rule {rule!r}")
        return claims

    def check_totals(self) -> None:
        """The whole ledger sums to zero, by transaction and by account, and nothing is left on hold."""
        say = self._verdict.faults.append
        for transaction, lines in self._entries.items():
            if total := sum(line["amount"] for line in lines):
                say(f"ledger transaction {transaction} sums to {total}")
        posted: dict[int, int] = defaultdict(int)
        for row in self._rows.entries:
            posted[row["account_id"]] += row["amount"]
        for account in self._rows.accounts:
            if account["posted"] != posted[account["id"]]:
                say(f"account {account['id']}: posted {account['posted']}, its entries sum to {posted[account['id']]}")
            if account["held"]:
                say(f"account {account['id']}: {account['held']} nano-dollars are still held")
        settled = {hold["id"] for hold in self._rows.holds if hold["state"] == "settled"}
        if strangers := set(self.usage) - settled:
            say(f"usage without a settled hold: {sorted(strangers)}")


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


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
