"""The balance of the account: each movement is a balance transaction, with Stripe's fee. Amounts are cents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stripe import params

from devstack.stripe_double.messages import JsonObject
from devstack.stripe_double.objects import base
from devstack.stripe_double.resource import RETRIEVE, read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

SETTLING_SECONDS = 2 * 24 * 3600  # from a payment until its money can be paid out


def book(
    double: StripeDouble, kind: str, source: JsonObject, amount: int, *, fee: int = 0, category: str | None = None
) -> JsonObject:
    """Move the balance by `amount` less `fee`, because of the object `source`; return the balance transaction.

    `category` is Stripe's reporting category, where it is not `kind` itself. Money that leaves is available at once.
    """
    now = double.now()
    moved = base(
        "balance_transaction",
        "txn",
        now,
        amount=amount,
        available_on=now + (SETTLING_SECONDS if amount > 0 else 0),
        balance_type="payments",
        currency=source.get("currency") or "usd",
        description=None,
        exchange_rate=None,
        fee=fee,
        fee_details=[
            {"amount": fee, "application": None, "currency": "usd", "description": "Stripe fees", "type": "stripe_fee"}
        ]
        if fee
        else [],
        net=amount - fee,
        reporting_category=category or kind,
        source=source["id"],
        status="pending" if amount > 0 else "available",
        type=kind,
    )
    del moved["livemode"]  # Stripe's only object without it
    return double.add(moved)


def let_time_pass(double: StripeDouble) -> None:
    """Make the money available whose time has come."""
    for moved in double.state.of_kind("balance_transaction"):
        if moved["status"] == "pending" and moved["available_on"] <= double.now():
            moved["status"] = "available"


def _retrieve(double: StripeDouble, _id: str, _parameters: JsonObject, _key: str | None) -> JsonObject:
    sums = {"available": 0, "pending": 0}
    for moved in double.state.of_kind("balance_transaction"):
        if moved.get("_account") == double.acting_account:
            sums[moved["status"]] += moved["net"]
    shown = {status: [{"amount": total, "currency": "usd"}] for status, total in sums.items()}
    return {"object": "balance", "livemode": False, **shown}


ROUTES = (
    route("GET", "/v1/balance", params.BalanceRetrieveParams, RETRIEVE, _retrieve),
    *read(
        "/v1/balance_transactions",
        "balance_transaction",
        params.BalanceTransactionRetrieveParams,
        params.BalanceTransactionListParams,
        "currency",
        "source",
        "type",
    ),
)
