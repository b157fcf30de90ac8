"""Stripe Tax on checkout pages: by the payer's country and tax id, as a seller in Germany would be told. In cents."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from devstack.stripe_double.messages import JsonObject, invalid
from devstack.stripe_double.objects import base

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

PARAMETERS = frozenset({"automatic_tax", "billing_address_collection", "customer_update", "tax_id_collection"})
TYPED = ("name", "country", "tax_id", "line1", "city")  # what a form of the page may carry about its payer
SELLER_COUNTRY = "DE"
STANDARD_RATES = {"AT": 20.0, "DE": 19.0, "ES": 21.0, "FR": 20.0, "IE": 23.0, "IT": 22.0, "NL": 21.0, "PL": 23.0}

COUNTRIES = tuple(sorted({*STANDARD_RATES, "CH", "GB", "US"}))  # that a page offers
_TAX_ID = re.compile(r"[A-Z]{2}[0-9A-Z+*]{2,13}")


def payer(
    *, name: str = "Test Payer", country: str = "US", tax_id: str = "", line1: str = "1 Test Street", city: str = "Test"
) -> JsonObject:
    """Return what a payer types on a page; set it as `double.payer`, or send it with the page's form."""
    return {
        "address": {
            "city": city,
            "country": country,
            "line1": line1,
            "line2": None,
            "postal_code": "10119",
            "state": None,
        },
        "business_name": name if tax_id else None,
        "email": "payer@example.com",
        "individual_name": None,
        "name": name,
        "phone": None,
        "tax_exempt": "none",
        "tax_ids": [{"type": "eu_vat", "value": tax_id}] if tax_id else [],
    }


def asked(parameters: JsonObject) -> list[str]:
    """Return which of `TYPED` a page opened with these parameters asks its payer for."""
    address = wanted(parameters) or parameters.get("billing_address_collection") == "required"
    business = bool(parameters.get("tax_id_collection", {}).get("enabled"))
    return [*(("name", "country") if address else ()), *(("tax_id",) if business else ())]


def payer_of_form(form: dict[str, str]) -> JsonObject:
    """Return the payer that the form of a page names. Raises Refused for a country or tax id that cannot be one."""
    if re.fullmatch("[A-Z]{2}", form["country"]) is None:
        raise invalid("country", "Choose a country.")
    if form.get("tax_id") and _TAX_ID.fullmatch(form["tax_id"]) is None:
        raise invalid("tax_id", "This is no VAT number. It begins with its country, as DE123456789 does.")
    return payer(**{name: form[name] for name in TYPED if name in form})


def wanted(parameters: JsonObject) -> bool:
    """Return whether the page was opened with automatic tax."""
    return bool(parameters.get("automatic_tax", {}).get("enabled"))


def reckon(double: StripeDouble, session: JsonObject) -> None:
    """Add the tax of the payer's country to an open page, just before it is paid."""
    session["customer_details"] = double.payer
    if not session["automatic_tax"]["enabled"]:
        return
    net = session["amount_subtotal"]
    country = double.payer["address"]["country"]
    percent, reason = _rate(country, business=bool(double.payer["tax_ids"]))
    if double.tax_percent:  # whatever the country
        percent, reason = float(double.tax_percent), "standard_rated"
    amount = int(net * percent) // 100
    rate = base(
        "tax_rate",
        "txr",
        double.now(),
        active=False,
        country=country,
        description=None,
        display_name="VAT",
        effective_percentage=percent,
        flat_amount=None,
        inclusive=False,
        jurisdiction=country,
        jurisdiction_level="country",
        metadata={},
        percentage=percent,
        rate_type="percentage",
        state=None,
        tax_type="vat",
    )
    taxed = {"amount": amount, "rate": rate, "taxability_reason": reason, "taxable_amount": net}
    breakdown = {"discounts": [], "taxes": [] if reason == "not_collecting" else [taxed]}
    session["amount_total"] = net + amount
    session["total_details"] |= {"amount_tax": amount, "breakdown": breakdown}
    session["automatic_tax"] |= {"status": "complete"}


def _rate(country: str, *, business: bool) -> tuple[float, str]:
    if country not in STANDARD_RATES:
        return 0.0, "not_collecting"
    if business and country != SELLER_COUNTRY:
        return 0.0, "reverse_charge"
    return STANDARD_RATES[country], "standard_rated"
