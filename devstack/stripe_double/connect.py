"""Connect: Express accounts, the page on which their owners give details and a bank account, and their dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stripe import params

from devstack.stripe_double.connect_pages import back_to, dashboard_page, onboarding_page
from devstack.stripe_double.messages import JsonObject, Refused, Response, invalid, missing
from devstack.stripe_double.objects import base, new_id
from devstack.stripe_double.resource import page, read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

LINK_SECONDS = 300
# Stripe's own test numbers: the bank behind each does with a payout what its name says.
BANKS = {
    "000123456789": None,
    "000111111116": "no_account",
    "000111111113": "account_closed",
    "000222222227": "insufficient_funds",
    "000333333335": "debit_not_authorized",
    "000444444440": "invalid_currency",
}
_DUE_AT_FIRST = ["business_profile.url", "external_account", "individual.first_name", "tos_acceptance.date"]


# API


def _create(double: StripeDouble, _id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    if parameters.get("type") != "express":
        raise invalid("type", "this double knows express accounts only")
    if parameters.get("country", "US") != "US":
        raise invalid("country", "this double knows accounts in the United States only")
    if "transfers" not in parameters.get("capabilities", {}):
        raise invalid("capabilities", "an express account needs a capability: this double knows transfers only")
    account = double.add(_account(double.now(), parameters))
    double.emit("account.updated", account, key)
    return double.shown(account, parameters)


def _create_link(double: StripeDouble, _id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
    for name in ("return_url", "refresh_url"):
        if not parameters.get(name):
            raise missing(name)
    if parameters["type"] != "account_onboarding":
        raise invalid("type", "this double knows account_onboarding only")
    account = double.find("account", parameters["account"])
    now = double.now()
    # Not an object that Stripe shows again: it has no id there.
    visit = double.add(
        base(
            "double.visit",
            "visit",
            now,
            account=account["id"],
            expires_at=now + LINK_SECONDS,
            return_url=parameters["return_url"],
            refresh_url=parameters["refresh_url"],
            used=False,
        )
    )
    return {
        "object": "account_link",
        "created": now,
        "expires_at": visit["expires_at"],
        "url": f"{double.base_url}/connect/onboarding/{visit['id']}",
    }


def _create_login_link(double: StripeDouble, account_id: str, _parameters: JsonObject, _key: str | None) -> JsonObject:
    account = double.find("account", account_id)
    if not account["details_submitted"]:
        raise Refused(400, "invalid_request_error", "Cannot create a login link for an account that is not onboarded.")
    url = f"{double.base_url}/connect/dashboard/{account_id}"
    return {"object": "login_link", "created": double.now(), "url": url}


# Events at Stripe without a call of the platform


def onboard(double: StripeDouble, account_id: str, *, number: str = "000123456789", verified: bool = True) -> None:
    """Fill in the pages of an account: a bank account, and an identity that Stripe accepts at once or asks more of."""
    with double.turn():
        account = double.find("account", account_id)
        account["details_submitted"] = True
        banks = account["external_accounts"]
        banks["data"] = [_bank_account(account_id, number)]
        account["_bank_failure"] = BANKS[number]
        _judge(account, [] if verified else ["individual.verification.document"])
        double.emit("account.updated", account)


def restrict(double: StripeDouble, account_id: str, *, rejected: bool = False) -> None:
    """Stop an account, as Stripe does when it finds that something is missing, or for good."""
    with double.turn():
        account = double.find("account", account_id)
        _judge(account, ["individual.verification.document"])
        if rejected:
            account["requirements"]["disabled_reason"] = "rejected.fraud"
        double.emit("account.updated", account)


def _judge(account: JsonObject, due: list[str]) -> None:
    account["requirements"] |= {
        "currently_due": due,
        "eventually_due": due,
        "past_due": due,
        "disabled_reason": "requirements.past_due" if due else None,
    }
    account["payouts_enabled"] = not due
    account["capabilities"]["transfers"] = "inactive" if due else "active"


# Pages


def _visit(double: StripeDouble, visit_id: str) -> JsonObject | None:
    found = double.state.objects.get(visit_id)
    return found if found is not None and found["object"] == "double.visit" else None


def _show(double: StripeDouble, visit_id: str, _form: dict[str, str]) -> Response:
    with double.turn():
        visit = _visit(double, visit_id)
        if visit is None:
            return onboarding_page(None, "", {})
        if visit["used"] or visit["expires_at"] <= double.now():
            return back_to(visit["refresh_url"])
        visit["used"] = True  # a link is for one visit; the form of that visit may still be sent
        return onboarding_page(visit_id, double.find("account", visit["account"])["business_profile"]["name"], BANKS)


def _fill_in(double: StripeDouble, visit_id: str, form: dict[str, str]) -> Response:
    visit = _visit(double, visit_id)
    if visit is None:
        return onboarding_page(None, "", {})
    number = form.get("account_number", "000123456789")
    if form.get("action") != "later" and number in BANKS:
        onboard(double, visit["account"], number=number, verified=form.get("identity") != "unclear")
    return back_to(visit["return_url"])


def _dashboard(double: StripeDouble, account_id: str, _form: dict[str, str]) -> Response:
    with double.turn():
        account = double.state.objects.get(account_id)
        if account is None or account["object"] != "account":
            return dashboard_page(None, [])
        payouts = [found for found in double.state.of_kind("payout") if found["_account"] == account_id]
        return dashboard_page(account, payouts)


# Objects


def _account(now: int, parameters: JsonObject) -> JsonObject:
    interval = parameters.get("settings", {}).get("payouts", {}).get("schedule", {}).get("interval", "daily")
    profile = {"mcc": None, "name": None, "product_description": None, "url": None} | {
        "support_address": None,
        "support_email": None,
        "support_phone": None,
        "support_url": None,
    }
    account = base(
        "account",
        "acct",
        now,
        business_profile=profile | parameters.get("business_profile", {}),
        business_type="individual",
        capabilities={"transfers": "inactive"},
        charges_enabled=False,
        country="US",
        default_currency="usd",
        details_submitted=False,
        email=parameters.get("email"),
        external_accounts={"object": "list", "data": [], "has_more": False, "url": ""},
        future_requirements=_requirements([]),
        metadata=parameters.get("metadata", {}),
        payouts_enabled=False,
        requirements=_requirements(_DUE_AT_FIRST),
        settings={
            "branding": {},
            "card_payments": {},
            "dashboard": {},
            "payments": {},
            "payouts": {"debit_negative_balances": False, "schedule": {"delay_days": 2, "interval": interval}},
        },
        type="express",
        _bank_failure=None,
    )
    account["external_accounts"]["url"] = f"/v1/accounts/{account['id']}/external_accounts"
    del account["livemode"]  # an account has both sides
    return account


def _requirements(due: list[str]) -> JsonObject:
    return {
        "alternatives": [],
        "current_deadline": None,
        "currently_due": due,
        "disabled_reason": "requirements.past_due" if due else None,
        "errors": [],
        "eventually_due": due,
        "past_due": due,
        "pending_verification": [],
    }


def _bank_account(account_id: str, number: str) -> JsonObject:
    return {
        "id": new_id("ba"),
        "object": "bank_account",
        "account": account_id,
        "account_holder_name": None,
        "account_holder_type": None,
        "account_type": None,
        "available_payout_methods": ["standard"],
        "bank_name": "STRIPE TEST BANK",
        "country": "US",
        "currency": "usd",
        "default_for_currency": True,
        "fingerprint": None,
        "last4": number[-4:],
        "metadata": {},
        "routing_number": "110000000",
        "status": "new",
    }


ROUTES = (
    route(
        "POST",
        "/v1/accounts",
        params.AccountCreateParams,
        {"type", "country", "email", "capabilities", "business_profile", "settings", "metadata", "expand"},
        _create,
    ),
    route("POST", "/v1/accounts/{id}/login_links", params.AccountLoginLinkCreateParams, set(), _create_login_link),
    route(
        "POST",
        "/v1/account_links",
        params.AccountLinkCreateParams,
        {"account", "type", "return_url", "refresh_url", "collection_options"},
        _create_link,
    ),
    *read("/v1/accounts", "account", params.AccountRetrieveParams, params.AccountListParams),
)
PAGES = (
    page("GET", "/connect/onboarding/{id}", _show),
    page("POST", "/connect/onboarding/{id}", _fill_in),
    page("GET", "/connect/dashboard/{id}", _dashboard),
)
