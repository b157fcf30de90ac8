"""Receipts of payment: one for each top-up that was credited, with the tax that Stripe added, rate by rate.

The receipt is the tax paper: tax is due when credit is bought (docs/invoices.md says why).
"""

from __future__ import annotations

import logging
from typing import Any

from django.db.models import CharField, Exists, OuterRef
from django.db.models.functions import Cast

from billing.models import Paper, PaymentDetail, TopUp
from billing.papers import tax_ids
from billing.papers.document import Cell, Column, Document, Party, Table
from billing.papers.issue import issue
from billing.papers.profiles import address, organization_party, party_of, platform_party, profile_of
from billing.pricing import NANO_PER_CENT
from marketplace.accounts.models import Organization

logger = logging.getLogger(__name__)

TAX_TABLE = "Tax by rate"
MONEY = Column("Amount", "money")
TAX_COLUMNS = (
    Column("Tax"),
    Column("Place"),
    Column("Rate"),
    Column("Treatment"),
    Column("Taxable amount", "money"),
    Column("Tax amount", "money"),
)
CREDIT_NOTE_ON_CREDIT = (
    "Prepaid credit for predictions; amounts are in US dollars. The monthly invoice lists the predictions that this "
    "credit paid for, and charges no tax again."
)
REVERSE_CHARGE = (
    "Reverse charge: the recipient is liable for the tax (in the European Union under Article 196 of Council Directive "
    "2006/112/EC)."
)
NO_TAX = "No tax was charged on this payment."


def issue_due_receipts(*, limit: int = 200) -> int:
    """Issue the receipts of credited top-ups that have none, oldest first. Returns how many were issued.

    Papers wait while the platform has no billing profile: a receipt must name who was paid.
    """
    seller = platform_party()
    if seller is None:
        return 0
    top_up_id = Cast(OuterRef("pk"), CharField())
    has_receipt = Exists(Paper.objects.filter(kind=Paper.Kind.RECEIPT, subject=top_up_id))
    due = TopUp.objects.filter(state=TopUp.State.CREDITED).exclude(has_receipt).select_related("organization")
    found = list(due.order_by("credited_at")[:limit])
    for top_up in found:
        issue_receipt(top_up, seller)
    return len(found)


def issue_receipt(top_up: TopUp, seller: Party) -> Paper:
    """Issue the receipt of one credited top-up, or return the one there is."""
    assert top_up.credited_at is not None, "only a payment that arrived has a receipt"
    return issue(
        Paper.Kind.RECEIPT,
        organization=top_up.organization,
        subject=str(top_up.pk),
        period=top_up.credited_at.date().replace(day=1),
        document=receipt_document(top_up, seller),
        total_nano_usd=(top_up.amount_cents + top_up.tax_cents) * NANO_PER_CENT,
        tax_nano_usd=top_up.tax_cents * NANO_PER_CENT,
    )


def receipt_document(top_up: TopUp, seller: Party) -> Document:
    """Return what the receipt of a credited top-up says."""
    detail = PaymentDetail.objects.filter(top_up=top_up).first()
    payer = detail.payer if detail else None
    taxes = tax_rows(detail.taxes if detail else [], net_cents=top_up.amount_cents, tax_cents=top_up.tax_cents)
    assert top_up.credited_at is not None
    facts = [
        ("Paid on", f"{top_up.credited_at:%Y-%m-%d}"),
        ("Paid by", "card, through Stripe"),
        ("Payment reference", top_up.payment_intent_id or str(top_up.pk)),
        ("Top-up", str(top_up.pk)),
    ]
    if payer and payer["country"]:
        facts.append(("Tax reckoned for", tax_ids.countries().get(payer["country"], payer["country"])))
    net, tax = top_up.amount_cents * NANO_PER_CENT, top_up.tax_cents * NANO_PER_CENT
    lines = Table(
        "Payment",
        (Column("Description"), Column("Quantity", "count"), MONEY),
        (("Prepaid prediction credit", 1, net),),
        (("Net", None, net), ("Tax", None, tax), ("Total paid", None, net + tax)),
    )
    return Document(
        title="Receipt of payment and tax invoice" if taxes else "Receipt of payment",
        parties=(seller, _buyer(top_up.organization, payer)),
        facts=tuple(facts),
        tables=(lines, *tax_table(taxes)),
        notes=(*tax_notes(taxes), CREDIT_NOTE_ON_CREDIT),
    )


def tax_rows(taxes: list[dict[str, Any]], *, net_cents: int, tax_cents: int) -> list[dict[str, Any]]:
    """Return the tax by rate; what Stripe did not break down is a row of its own, so that rows sum to the tax."""
    rest = tax_cents - sum(tax["amount_cents"] for tax in taxes)
    unknown = {
        "name": "Tax",
        "place": "",
        "percent": "",
        "reason": "",
        "taxable_cents": net_cents,
        "amount_cents": rest,
    }
    return [*taxes, unknown] if rest else list(taxes)


def tax_table(taxes: list[dict[str, Any]], *, sign: int = 1) -> tuple[Table, ...]:
    """Return the table of tax by rate, if there are rates; `sign` is -1 on a credit note."""
    if not taxes:
        return ()
    rows: list[tuple[Cell, ...]] = [
        (
            tax["name"],
            tax_ids.countries().get(tax["place"], tax["place"]),
            f"{tax['percent']} %" if tax["percent"] else "not stated",
            tax["reason"].replace("_", " ") or "not stated",
            sign * tax["taxable_cents"] * NANO_PER_CENT,
            sign * tax["amount_cents"] * NANO_PER_CENT,
        )
        for tax in taxes
    ]
    total = sign * sum(tax["amount_cents"] for tax in taxes) * NANO_PER_CENT
    return (Table(TAX_TABLE, TAX_COLUMNS, tuple(rows), (("Total tax", None, None, None, None, total),)),)


def tax_notes(taxes: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the wording that the treatment of tax asks for."""
    if any(tax["reason"] == "reverse_charge" for tax in taxes):
        return (REVERSE_CHARGE,)
    return () if any(tax["amount_cents"] for tax in taxes) else (NO_TAX,)


def _buyer(organization: Organization, payer: dict[str, Any] | None) -> Party:
    """Return who is billed: a payer who gave Stripe a tax id, since the tax follows from that; else the profile."""
    profile = profile_of(organization)
    if payer and payer["name"] and (payer["tax_ids"] or profile is None):
        lines = address(
            **{name: payer[name] for name in ("line1", "line2", "postal_code", "city", "region", "country")}
        )
        ids = ", ".join(tax_ids.labelled(value, country=payer["country"]) for value in payer["tax_ids"])
        return Party(role="Billed to", name=payer["name"], address=lines, tax_id=ids, email=payer["email"])
    return party_of(profile, role="Billed to") if profile else organization_party(organization, role="Billed to")
