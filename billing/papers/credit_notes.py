"""Credit notes: each refund of a top-up takes back a part of its receipt, and of the tax by rate."""

from __future__ import annotations

from typing import Any

from django.db.models import CharField, Exists, OuterRef
from django.db.models.functions import Cast

from billing.models import Paper, TopUpRefund
from billing.papers.document import Column, Document, Table
from billing.papers.issue import document_of, issue
from billing.papers.receipts import MONEY, tax_notes, tax_rows, tax_table
from billing.pricing import NANO_PER_CENT


def issue_due_credit_notes(*, limit: int = 200) -> int:
    """Issue the credit notes of refunds that Stripe has sent and that have none, oldest first. Returns how many.

    A refund waits until the receipt that it takes back is issued.
    """
    receipt = Paper.objects.filter(kind=Paper.Kind.RECEIPT, subject=Cast(OuterRef("top_up_id"), CharField()))
    note = Paper.objects.filter(kind=Paper.Kind.CREDIT_NOTE, subject=Cast(OuterRef("pk"), CharField()))
    due = TopUpRefund.objects.filter(Exists(receipt), ~Exists(note), state=TopUpRefund.State.SENT)
    found = list(due.select_related("top_up__organization", "top_up__payment_detail").order_by("created_at")[:limit])
    for refund in found:
        _issue(refund)
    return len(found)


def _issue(refund: TopUpRefund) -> Paper:
    receipt = Paper.objects.get(kind=Paper.Kind.RECEIPT, subject=str(refund.top_up_id))
    return issue(
        Paper.Kind.CREDIT_NOTE,
        organization=refund.top_up.organization,
        subject=str(refund.pk),
        document=_document(refund, receipt),
        total_nano_usd=-(refund.amount_cents + refund.tax_cents) * NANO_PER_CENT,
        tax_nano_usd=-refund.tax_cents * NANO_PER_CENT,
        period=refund.created_at.date().replace(day=1),
        corrects=receipt,
    )


def _document(refund: TopUpRefund, receipt: Paper) -> Document:
    detail = getattr(refund.top_up, "payment_detail", None)
    taxes = tax_rows(
        detail.taxes if detail else [], net_cents=refund.top_up.amount_cents, tax_cents=refund.top_up.tax_cents
    )
    shares = [
        tax | {"taxable_cents": refund.amount_cents, "amount_cents": amount}
        for tax, amount in zip(taxes, _shares(taxes, refund.tax_cents), strict=True)
    ]
    net, tax = -refund.amount_cents * NANO_PER_CENT, -refund.tax_cents * NANO_PER_CENT
    lines = Table(
        "Paid back",
        (Column("Description"), MONEY),
        ((f"Unused prepaid credit of receipt {receipt.name}", net),),
        (("Net", net), ("Tax", tax), ("Total paid back", net + tax)),
    )
    return Document(
        title="Credit note",
        # The parties of the receipt, whatever their profiles say by now.
        parties=document_of(receipt).parties,
        facts=(
            ("Corrects", f"{receipt.name} of {receipt.issued_at:%Y-%m-%d}"),
            ("Paid back on", f"{refund.created_at:%Y-%m-%d}"),
            ("Paid back to", "the card of the payment, through Stripe"),
            ("Refund reference", refund.stripe_refund_id or str(refund.pk)),
        ),
        tables=(lines, *tax_table(shares, sign=-1)),
        notes=tax_notes(shares),
    )


def _shares(taxes: list[dict[str, Any]], back: int) -> list[int]:
    """Divide the tax that goes back by what each rate had, in cents: by largest remainder, ties to the first."""
    whole = sum(tax["amount_cents"] for tax in taxes)
    if whole == 0:
        return [0] * len(taxes)
    parts = [tax["amount_cents"] * back for tax in taxes]
    shares = [part // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda place: (-(parts[place] % whole), place))
    for place in by_remainder[: back - sum(shares)]:
        shares[place] += 1
    return shares
