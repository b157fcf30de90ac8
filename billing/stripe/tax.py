"""Tax as Stripe reckons it: what a checkout page asks of the payer, and the tax that it added, rate by rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stripe.params.checkout import SessionCreateParams

# Stripe Tax reckons from the address and the tax id of a business, with reverse charge where that is the law.
PARAMETERS: SessionCreateParams = {
    "automatic_tax": {"enabled": True},
    "billing_address_collection": "required",
    "tax_id_collection": {"enabled": True},
}
# Given with a customer: what the payer types there is kept with the customer, as Stripe asks for.
CUSTOMER_PARAMETERS: SessionCreateParams = {"customer_update": {"address": "auto", "name": "auto"}}
EXPAND = ["total_details.breakdown"]


@dataclass(frozen=True, slots=True)
class TaxAmount:
    """The tax of one rate in one place. `reason` is Stripe's, such as standard_rated or reverse_charge."""

    name: str  # such as VAT
    place: str  # such as DE
    percent: str  # as Stripe writes it, such as 19.0; empty when there is none
    reason: str
    taxable_cents: int
    amount_cents: int


@dataclass(frozen=True, slots=True)
class Payer:
    """The payer as Stripe knows it after the payment. Each text may be empty."""

    name: str
    email: str
    line1: str
    line2: str
    postal_code: str
    city: str
    region: str
    country: str
    tax_ids: tuple[str, ...]
    tax_exempt: str  # none, exempt, reverse


def parse_payer(session: Any) -> Payer | None:
    """Read who paid a checkout page; None before it is paid."""
    details = getattr(session, "customer_details", None)
    if details is None:
        return None
    address = getattr(details, "address", None)
    return Payer(
        # With `tax_id_collection` the name of a business is its own field.
        name=_text(details, "business_name") or _text(details, "name"),
        email=_text(details, "email"),
        line1=_text(address, "line1"),
        line2=_text(address, "line2"),
        postal_code=_text(address, "postal_code"),
        city=_text(address, "city"),
        region=_text(address, "state"),
        country=_text(address, "country"),
        tax_ids=tuple(_text(found, "value") for found in getattr(details, "tax_ids", None) or ()),
        tax_exempt=_text(details, "tax_exempt"),
    )


def parse_taxes(session: Any) -> tuple[TaxAmount, ...]:
    """Read the tax of a checkout page by rate. Only a page that was fetched with `EXPAND` has it."""
    breakdown = getattr(getattr(session, "total_details", None), "breakdown", None)
    return tuple(_tax(found) for found in getattr(breakdown, "taxes", None) or ())


def _tax(found: Any) -> TaxAmount:
    rate = found.rate
    percent = getattr(rate, "effective_percentage", None)
    percent = getattr(rate, "percentage", None) if percent is None else percent
    return TaxAmount(
        name=_text(rate, "display_name") or "Tax",
        place=_text(rate, "jurisdiction") or _text(rate, "state") or _text(rate, "country"),
        percent="" if percent is None else str(percent),
        reason=_text(found, "taxability_reason"),
        taxable_cents=int(getattr(found, "taxable_amount", 0) or 0),
        amount_cents=int(found.amount or 0),
    )


def _text(found: Any, name: str) -> str:
    return str(getattr(found, name, None) or "")
