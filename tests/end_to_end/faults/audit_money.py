"""The audit of what moves after a charge: corrections and payouts, each by its id, with arithmetic of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from tests.end_to_end.faults.clerk import Errands
from tests.end_to_end.faults.rows import Rows

NANO_PER_CENT = 10**7
CREATOR = ("creator_reserve", "creator_payable", "receivable")
Entries = dict[int, list[dict[str, Any]]]
# The transactions of a payout by its state, and what each moves, as signs of its amount.
_STEPS = {
    "payout": {"creator_payable": -1, "payout_in_transit": 1},
    "payout_transfer": {"clearing": -1, "stripe_cash": 1},
    "payout_paid": {"payout_in_transit": -1, "clearing": 1},
}
_STATES = {"created": 1, "transferred": 2, "paying": 2, "paid": 3}


class Corrections:
    """All that was given back, by prediction: `check` follows one charge through its corrections, oldest first."""

    def __init__(self, rows: Rows, entries: Entries, errands: Errands, faults: list[str]) -> None:
        self._entries, self._errands, self._faults = entries, errands, faults
        self._by_prediction: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows.corrections:
            self._by_prediction[row["prediction"]].append(row)
        self._rows = {row["id"]: row for row in rows.corrections}
        charges = {number for number, lines in entries.items() if lines[0]["kind"] == "prediction"}
        self._strays = {number for number, lines in entries.items() if lines[0]["corrects_id"] in charges}
        self._strays -= {row["transaction_id"] for row in rows.corrections}

    def check(self, hold: dict[str, Any], charge: list[dict[str, Any]]) -> tuple[int, int]:
        """Return what the gateway and what the clerk gave back of a charge whose entries are `charge`."""
        given = sorted(self._by_prediction.get(hold["id"], []), key=lambda row: row["transaction_id"])
        rest = Counter({_party(line): line["amount"] for line in charge if line["account"] != "customer_credit"})
        back = Counter[bool]()
        for row in given:
            lines = self._entries.get(row["transaction_id"], [])
            moved = Counter[str]()
            for line in lines:
                moved[_party(line)] += line["amount"]
            share = _largest_remainder(row["amount"], rest)
            expected = Counter({"customer": row["amount"], **{party: -part for party, part in share.items() if part}})
            if moved != expected or {line["corrects_id"] for line in lines} != {charge[0]["id"]}:
                self._faults.append(f"{hold['id']}: correction {row['id']} moved {dict(moved)}, not {dict(expected)}")
            rest.subtract(share)
            back[row["id"] in self._errands.corrections] += row["amount"]
        if sum(back.values()) > hold["cost"]:
            self._faults.append(f"{hold['id']}: {sum(back.values())} given back of a charge of {hold['cost']}")
        return back[False], back[True]

    def check_errands(self) -> None:
        """Each correction that was answered is in the books once, with its amount, and none without its prediction."""
        for name, (prediction, amount) in self._errands.corrections.items():
            row, answer = self._rows.get(name), self._errands.answers.get(name)
            if row is not None and (row["prediction"], row["amount"]) != (prediction, amount):
                self._faults.append(f"correction {name}: {row['amount']} of {row['prediction']} were given back")
            if (row is None) == (answer == "done"):
                self._faults.append(f"correction {name}: answered {answer}, and the books have {row}")
        for transaction in sorted(self._strays):
            self._faults.append(f"ledger transaction {transaction} corrects a charge and is no correction of it")


def check_payouts(rows: Rows, entries: Entries, errands: Errands, transfers: list[dict[str, Any]]) -> list[str]:
    """Return the contradictions between payouts, their entries, what the clerk asked for, and Stripe's transfers."""
    faults: list[str] = []
    booked: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(dict)
    for lines in entries.values():
        if lines[0]["kind"].startswith("payout"):
            booked[lines[0]["reference"]][lines[0]["kind"]] = lines
    sent: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for transfer in transfers:
        sent[transfer["metadata"]["payout_id"]].append(transfer)
    for row in rows.payouts:
        steps, transferred = booked.pop(row["id"], {}), sent.pop(row["id"], [])
        if row["is_makers"]:
            faults += _check_payout(row, steps, [transfer["amount"] for transfer in transferred])
            if row["id"] not in errands.payouts:
                faults.append(f"payout {row['id']}: nobody asked for it")
    faults += [f"payout {name}: entries without a payout" for name in booked]
    faults += [f"payout {name}: Stripe transferred money that the books do not know" for name in sent]
    known = {row["id"] for row in rows.payouts}
    for name in errands.payouts:
        if (name in known) != (errands.answers.get(name) == "done"):
            faults.append(f"payout {name}: answered {errands.answers.get(name)}, in the books: {name in known}")
    return faults


def _check_payout(row: dict[str, Any], booked: dict[str, list[dict[str, Any]]], amounts: list[int]) -> list[str]:
    """Compare one payout with its entries and the amounts that Stripe transferred for it."""
    nano = row["cents"] * NANO_PER_CENT
    steps = dict(list(_STEPS.items())[: _STATES.get(row["state"], 0)])
    expected = {kind: {account: sign * nano for account, sign in signs.items()} for kind, signs in steps.items()}
    found = {kind: {line["account"]: line["amount"] for line in lines} for kind, lines in booked.items()}
    faults = []
    if found != expected:
        faults.append(f"payout {row['id']} is {row['state']} and booked {found}, not {expected}")
    if amounts != ([row["cents"]] if len(steps) > 1 else []):
        faults.append(f"payout {row['id']} of {row['cents']} is {row['state']}, and Stripe transferred {amounts}")
    return faults


def _party(line: dict[str, Any]) -> str:
    """Return who a line belongs to: a maker's money moves between its accounts."""
    if line["account"] in CREATOR:
        return "maker"
    return "customer" if line["account"] == "customer_credit" else str(line["account"])


def _largest_remainder(amount: int, weights: Counter[str]) -> dict[str, int]:
    """Divide by largest remainder; the maker goes before the platform."""
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 0)
    parts = {party: amount * weight // total for party, weight in weights.items()}
    ranked = sorted(weights, key=lambda party: (-(amount * weights[party] % total), party != "maker"))
    for party in ranked[: amount - sum(parts.values())]:
        parts[party] += 1
    return parts
