"""Connect's money: transfers to connected accounts, their reversals, and payouts from there to banks. Cents.

A connected account's objects carry `_account`; they are seen by calls for that account alone. All of the platform's
balance counts as available, though a real charge is pending for two days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stripe import params

from devstack.stripe_double.messages import JsonObject, Refused, invalid, missing
from devstack.stripe_double.objects import base, new_id
from devstack.stripe_double.resource import read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

PAYOUT_SECONDS = 3  # a bank takes a payout in days, this double's in seconds
ARRIVAL_SECONDS = 2 * 24 * 3600  # what Stripe announces
_FAILURES = {
    "no_account": "No account was found by this number.",
    "account_closed": "The bank account has been closed.",
    "insufficient_funds": "The account has insufficient funds to cover the payout.",
    "debit_not_authorized": "Debit transactions are not approved on the account.",
    "invalid_currency": "The bank was unable to process this payout because of its currency.",
}


def balance_cents(double: StripeDouble, account_id: str | None) -> int:
    """Return the balance of a connected account, or of the platform."""
    found = double.state.of_kind("balance_transaction")
    return sum(line["net"] for line in found if line.get("_account") == account_id)


# API


def _create_transfer(double: StripeDouble, _id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    amount = _amount(parameters)
    account = double.find("account", parameters["destination"])
    if account["capabilities"]["transfers"] != "active":
        message = "Your destination account needs to have the transfers capability enabled."
        raise invalid("destination", message, code="insufficient_capabilities_for_transfer")
    if amount > balance_cents(double, None):
        message = "You have insufficient available funds in your Stripe account."
        raise Refused(400, "invalid_request_error", message, code="balance_insufficient")
    transfer = double.add(
        base(
            "transfer",
            "tr",
            double.now(),
            amount=amount,
            amount_reversed=0,
            balance_transaction=None,
            currency="usd",
            description=parameters.get("description"),
            destination=account["id"],
            destination_payment=new_id("py"),
            metadata=parameters.get("metadata", {}),
            reversals={"object": "list", "data": [], "has_more": False, "url": ""},
            reversed=False,
            source_transaction=None,
            source_type="card",
            transfer_group=parameters.get("transfer_group"),
        )
    )
    transfer["reversals"]["url"] = f"/v1/transfers/{transfer['id']}/reversals"
    transfer["balance_transaction"] = _book(double, "transfer", -amount, transfer["id"])
    _book(double, "payment", amount, transfer["destination_payment"], account["id"])
    double.emit("transfer.created", transfer, key)
    return double.shown(transfer, parameters)


def _create_reversal(double: StripeDouble, transfer_id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    transfer = double.find("transfer", transfer_id)
    left = transfer["amount"] - transfer["amount_reversed"]
    amount = parameters.get("amount", left)
    if not 0 < amount <= left:
        raise invalid("amount", f"The transfer has {left} cents that are not reversed", code="transfer_reversal_failed")
    account_id = transfer["destination"]
    if amount > balance_cents(double, account_id):
        message = "The connected account has insufficient funds for this reversal."
        raise Refused(400, "invalid_request_error", message, code="insufficient_funds")
    reversal = double.add(
        base(
            "transfer_reversal",
            "trr",
            double.now(),
            amount=amount,
            balance_transaction=None,
            currency="usd",
            destination_payment_refund=new_id("pyr"),
            metadata=parameters.get("metadata", {}),
            source_refund=None,
            transfer=transfer_id,
        )
    )
    del reversal["livemode"]
    reversal["balance_transaction"] = _book(double, "transfer_refund", amount, reversal["id"])
    _book(double, "payment_refund", -amount, reversal["destination_payment_refund"], account_id)
    transfer["amount_reversed"] += amount
    transfer["reversed"] = transfer["amount_reversed"] == transfer["amount"]
    transfer["reversals"]["data"].insert(0, reversal)
    double.emit("transfer.reversed", transfer, key)
    return double.shown(reversal, parameters)


def _create_payout(double: StripeDouble, _id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    account_id = double.acting_account
    if account_id is None:
        raise invalid("amount", "this double knows payouts of connected accounts only")
    account = double.find("account", account_id)
    amount = _amount(parameters)
    if not account["external_accounts"]["data"]:
        message = "Sorry, you don't have any external accounts in that currency (usd)."
        raise Refused(400, "invalid_request_error", message, code="no_account")
    if not account["payouts_enabled"]:
        raise Refused(400, "invalid_request_error", "Payouts are disabled.", code="payouts_not_allowed")
    if amount > balance_cents(double, account_id):
        message = "You have insufficient funds in your Stripe account for this transfer."
        raise Refused(400, "invalid_request_error", message, code="balance_insufficient")
    payout = double.add(_payout(double.now(), account, amount, parameters))
    payout["balance_transaction"] = _book(double, "payout", -amount, payout["id"], account_id)
    double.emit("payout.created", payout, key)
    return double.shown(payout, parameters)


# Events at Stripe and at banks without a call of the platform


def let_time_pass(double: StripeDouble) -> None:
    """Let banks take the payouts that wait, or refuse them."""
    for payout in double.state.of_kind("payout"):
        if payout["status"] == "pending" and payout["created"] + PAYOUT_SECONDS <= double.now():
            failure = double.state.objects[payout["_account"]]["_bank_failure"]
            if failure is None:
                payout["status"] = "paid"
                double.emit("payout.paid", payout)
            else:
                _fail(double, payout, failure)


def send_back(double: StripeDouble, payout_id: str, failure: str = "account_closed") -> None:
    """Let the bank send back a payout that it had taken."""
    with double.turn():
        payout = double.state.objects[payout_id]
        if payout["status"] == "paid":
            _fail(double, payout, failure)


def _fail(double: StripeDouble, payout: JsonObject, failure: str) -> None:
    back = _book(double, "payout_failure", payout["amount"], payout["id"], payout["_account"])
    payout |= {
        "status": "failed",
        "failure_code": failure,
        "failure_message": _FAILURES[failure],
        "failure_balance_transaction": back,
    }
    double.emit("payout.failed", payout)


# Objects


def _payout(now: int, account: JsonObject, amount: int, parameters: JsonObject) -> JsonObject:
    return base(
        "payout",
        "po",
        now,
        amount=amount,
        application_fee=None,
        application_fee_amount=None,
        arrival_date=now + ARRIVAL_SECONDS,
        automatic=False,
        balance_transaction=None,
        currency="usd",
        description=parameters.get("description"),
        destination=account["external_accounts"]["data"][0]["id"],
        failure_balance_transaction=None,
        failure_code=None,
        failure_message=None,
        metadata=parameters.get("metadata", {}),
        method="standard",
        original_payout=None,
        payout_method=None,
        reconciliation_status="not_applicable",
        reversed_by=None,
        source_type="card",
        statement_descriptor=None,
        status="pending",
        trace_id=None,
        type="bank_account",
        _account=account["id"],
    )


def _book(double: StripeDouble, kind: str, amount: int, source: str, account_id: str | None = None) -> str:
    """Add a line to the balance of the platform, or of a connected account; return its id."""
    categories = {"payment": "charge", "payment_refund": "refund", "transfer_refund": "transfer_reversal"}
    categories["payout_failure"] = "payout_reversal"
    fields: dict[str, Any] = {} if account_id is None else {"_account": account_id}
    line = base(
        "balance_transaction",
        "txn",
        double.now(),
        amount=amount,
        available_on=double.now(),
        balance_type="payments",
        currency="usd",
        description=None,
        exchange_rate=None,
        fee=0,
        fee_details=[],
        net=amount,
        reporting_category=categories.get(kind, kind),
        source=source,
        status="available",
        type=kind,
        **fields,
    )
    del line["livemode"]  # Stripe's only object without it
    return str(double.add(line)["id"])


def _amount(parameters: JsonObject) -> int:
    if parameters["currency"] != "usd":
        raise invalid("currency", "this double knows US dollars only")
    if "amount" not in parameters:
        raise missing("amount")
    if parameters["amount"] < 1:
        raise invalid("amount", "This value must be greater than or equal to 1.", code="parameter_invalid_integer")
    return int(parameters["amount"])


ROUTES = (
    route(
        "POST",
        "/v1/transfers",
        params.TransferCreateParams,
        {"amount", "currency", "destination", "transfer_group", "description", "metadata", "expand"},
        _create_transfer,
    ),
    route(
        "POST",
        "/v1/transfers/{id}/reversals",
        params.TransferReversalCreateParams,
        {"amount", "metadata", "expand"},
        _create_reversal,
    ),
    *read(
        "/v1/transfers",
        "transfer",
        params.TransferRetrieveParams,
        params.TransferListParams,
        "destination",
        "transfer_group",
    ),
    route(
        "POST",
        "/v1/payouts",
        params.PayoutCreateParams,
        {"amount", "currency", "description", "metadata", "expand"},
        _create_payout,
    ),
    *read("/v1/payouts", "payout", params.PayoutRetrieveParams, params.PayoutListParams, "status"),
)
