"""The audit of corrections and payouts finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.end_to_end.faults.audit_money import NANO_PER_CENT, Corrections, check_payouts
from tests.end_to_end.faults.clerk import Errands
from tests.end_to_end.faults.rows import Rows

HOLD = {"id": "p", "cost": 1_000}


def entries(number: int, kind: str, reference: str, corrects: int | None, **amounts: int) -> list[dict[str, Any]]:
    fields = {"id": number, "kind": kind, "reference": reference, "corrects_id": corrects}
    return [{**fields, "account": account, "amount": amount} for account, amount in amounts.items()]


def right() -> tuple[Rows, Errands, list[dict[str, Any]]]:
    """A charge of 1,000 of which 101 were corrected and 899 refunded, and a payout of 3 cents that arrived."""
    cents = 3 * NANO_PER_CENT
    ledger = [
        *entries(1, "prediction", "p", None, customer_credit=-1_000, creator_reserve=800, platform_revenue=200),
        # 80.8 and 20.2: the larger remainder is the maker's, who had 30 of it left in the reserve.
        *entries(
            2, "correction", "c", 1, customer_credit=101, creator_reserve=-30, receivable=-51, platform_revenue=-20
        ),
        *entries(3, "correction", "r", 1, customer_credit=899, creator_reserve=-719, platform_revenue=-180),
        *entries(4, "payout", "out", None, creator_payable=-cents, payout_in_transit=cents),
        *entries(5, "payout_transfer", "out", None, clearing=-cents, stripe_cash=cents),
        *entries(6, "payout_paid", "out", None, payout_in_transit=-cents, clearing=cents),
    ]
    corrections = [
        {"id": "c", "prediction": "p", "amount": 101, "transaction_id": 2},
        {"id": "r", "prediction": "p", "amount": 899, "transaction_id": 3},
    ]
    payouts = [{"id": "out", "state": "paid", "cents": 3, "is_makers": True}]
    errands = Errands({"c": ("p", 101)}, {"out", "refused"}, {"c": "done", "out": "done", "refused": "below_minimum"})
    transfers = [{"amount": 3, "metadata": {"payout_id": "out"}}]
    return Rows([], [], ledger, [], [], [], corrections, payouts), errands, transfers


def audited(rows: Rows, errands: Errands, transfers: list[dict[str, Any]]) -> tuple[list[str], tuple[int, int]]:
    ledger: dict[int, list[dict[str, Any]]] = {}
    for row in rows.entries:
        ledger.setdefault(row["id"], []).append(row)
    faults: list[str] = []
    corrections = Corrections(rows, ledger, errands, faults)
    back = corrections.check(HOLD, ledger[1])
    corrections.check_errands()
    return faults + check_payouts(rows, ledger, errands, transfers), back


def test_right_books_have_no_contradiction_and_tell_refunds_from_corrections() -> None:
    assert audited(*right()) == ([], (899, 101))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows, errands, _t: rows.entries[3].update(amount=102), "correction c moved"),
        (lambda rows, errands, _t: rows.entries[6].update(amount=-21), "correction c moved"),
        (lambda rows, errands, _t: rows.corrections.pop(0), "is no correction of it"),
        (lambda rows, errands, _t: rows.corrections[1].update(amount=1_000), "1101 given back of a charge of 1000"),
        (lambda rows, errands, _t: errands.corrections.update(c=("p", 99)), "correction c: 101 of p"),
        (
            lambda rows, errands, _t: (rows.corrections.pop(0), rows.entries.__delitem__(slice(3, 7))),
            "answered done, and",
        ),
        (lambda rows, errands, _t: errands.answers.update(c="correction_refused"), "correction c: answered"),
        (lambda rows, errands, _t: rows.payouts[0].update(state="created"), "payout out is created and booked"),
        (lambda rows, errands, _t: rows.payouts[0].update(cents=4), "of 4 is paid, and Stripe transferred [3]"),
        (lambda rows, errands, transfers: transfers.append(transfers[0]), "Stripe transferred [3, 3]"),
        (lambda rows, errands, transfers: transfers.clear(), "Stripe transferred []"),
        (lambda rows, errands, _t: rows.payouts.clear(), "Stripe transferred money that the books do not know"),
        (lambda rows, errands, _t: errands.payouts.remove("out"), "nobody asked for it"),
        (lambda rows, errands, _t: errands.answers.update(refused="done"), "payout refused: answered done"),
    ],
)
def test_each_contradiction_is_told(change: Callable[[Rows, Errands, list[dict[str, Any]]], object], said: str) -> None:
    rows, errands, transfers = right()
    change(rows, errands, transfers)
    faults, _back = audited(rows, errands, transfers)
    assert [fault for fault in faults if said in fault], faults
