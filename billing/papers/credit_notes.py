"""Credit notes: what goes back of a top-up takes back a part of its receipt, and of the tax by rate.

A refund has its credit note once Stripe has sent it, and a dispute once it is lost. A note that is issued stays: where
a bank sends a refund back later, a second paper of the same series cancels the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import CharField, Exists, F, OuterRef, Value
from django.db.models.functions import Cast, Concat

from billing.models import Dispute, Paper, TopUp, TopUpRefund
from billing.papers.document import Column, Document, Table
from billing.papers.issue import document_of, issue
from billing.papers.receipts import MONEY, tax_notes, tax_rows, tax_table
from billing.pricing import NANO_PER_CENT

_RETURNED = " returned"  # ends the subject of a paper that cancels the note of a refund
_PAYMENT = ("top_up__organization", "top_up__payment_detail")


@dataclass(frozen=True, slots=True)
class _Note:
    """One paper to be issued; `sign` is -1 for money that went back, and 1 for money that came again."""

    subject: str
    top_up: TopUp
    corrects: Paper
    credit_cents: int
    tax_cents: int
    moved_at: datetime
    title: str
    line: str
    facts: tuple[tuple[str, str], ...]
    sign: int = -1


def issue_due_credit_notes(*, limit: int = 200) -> int:
    """Issue the credit notes that are due and not there yet, at most `limit` of each sort. Returns how many.

    Each waits until the paper that it takes back is issued.
    """
    issued = 0
    for notes in (_of_refunds, _of_lost_disputes, _of_returned_refunds):
        for note in list(notes(limit)):
            _issue(note)
            issued += 1
    return issued


def _of_refunds(limit: int) -> Iterator[_Note]:
    due = TopUpRefund.objects.filter(_receipt(), ~_note("pk"), sent_at__isnull=False).order_by("sent_at")
    for refund in due.select_related(*_PAYMENT)[:limit]:
        receipt = _receipt_of(refund.top_up)
        assert refund.sent_at is not None, "filtered"
        yield _Note(
            subject=str(refund.pk),
            top_up=refund.top_up,
            corrects=receipt,
            credit_cents=refund.amount_cents,
            tax_cents=refund.tax_cents,
            moved_at=refund.sent_at,
            title="Credit note",
            line=f"Unused prepaid credit of receipt {receipt.name}",
            facts=(
                ("Paid back on", f"{refund.sent_at:%Y-%m-%d}"),
                ("Paid back to", "the card of the payment, through Stripe"),
                ("Refund reference", refund.stripe_refund_id or str(refund.pk)),
            ),
        )


def _of_lost_disputes(limit: int) -> Iterator[_Note]:
    lost = Dispute.objects.filter(state=Dispute.State.LOST, credit_cents__gt=0)
    due = lost.filter(_receipt(), ~_note("pk")).order_by("closed_at")
    for dispute in due.select_related(*_PAYMENT)[:limit]:
        receipt = _receipt_of(dispute.top_up)
        assert dispute.closed_at is not None, "a lost dispute is closed"
        yield _Note(
            subject=dispute.pk,
            top_up=dispute.top_up,
            corrects=receipt,
            credit_cents=dispute.credit_cents,
            tax_cents=dispute.tax_cents,
            moved_at=dispute.closed_at,
            title="Credit note",
            line=f"Disputed payment of receipt {receipt.name}",
            facts=(
                ("Decided on", f"{dispute.closed_at:%Y-%m-%d}"),
                ("Paid back to", "the card of the payment, by its bank"),
                ("Dispute reference", dispute.pk),
            ),
        )


def _of_returned_refunds(limit: int) -> Iterator[_Note]:
    came_back = TopUpRefund.objects.filter(state=TopUpRefund.State.FAILED, sent_at__isnull=False)
    due = came_back.filter(_note("pk"), ~_note("pk", _RETURNED)).order_by("failed_at")
    for refund in due.select_related(*_PAYMENT)[:limit]:
        note = Paper.objects.get(kind=Paper.Kind.CREDIT_NOTE, subject=str(refund.pk))
        assert refund.failed_at is not None, "a refund that failed has its time"
        yield _Note(
            subject=f"{refund.pk}{_RETURNED}",
            top_up=refund.top_up,
            corrects=note,
            credit_cents=refund.amount_cents,
            tax_cents=refund.tax_cents,
            moved_at=refund.failed_at,
            title="Cancellation of a credit note",
            line=f"Prepaid credit of credit note {note.name}, which is back",
            facts=(
                ("Sent back on", f"{refund.failed_at:%Y-%m-%d}"),
                ("Sent back by", "the bank of the card"),
                ("Refund reference", refund.stripe_refund_id or str(refund.pk)),
            ),
            sign=1,
        )


def _receipt() -> Exists:
    top_up_id = Cast(OuterRef("top_up_id"), CharField())
    return Exists(Paper.objects.filter(kind=Paper.Kind.RECEIPT, subject=top_up_id))


def _note(name: str, ending: str = "") -> Exists:
    subject = Concat(Cast(OuterRef(name), CharField()), Value(ending))
    return Exists(Paper.objects.annotate(wanted=subject).filter(kind=Paper.Kind.CREDIT_NOTE, subject=F("wanted")))


def _receipt_of(top_up: TopUp) -> Paper:
    return Paper.objects.get(kind=Paper.Kind.RECEIPT, subject=str(top_up.pk))


def _issue(note: _Note) -> Paper:
    return issue(
        Paper.Kind.CREDIT_NOTE,
        organization=note.top_up.organization,
        subject=note.subject,
        document=_document(note),
        total_nano_usd=note.sign * (note.credit_cents + note.tax_cents) * NANO_PER_CENT,
        tax_nano_usd=note.sign * note.tax_cents * NANO_PER_CENT,
        period=note.moved_at.date().replace(day=1),
        corrects=note.corrects,
    )


def _document(note: _Note) -> Document:
    detail = getattr(note.top_up, "payment_detail", None)
    taxes = tax_rows(
        detail.taxes if detail else [], net_cents=note.top_up.amount_cents, tax_cents=note.top_up.tax_cents
    )
    shares = [
        tax | {"taxable_cents": note.credit_cents, "amount_cents": amount}
        for tax, amount in zip(taxes, _shares(taxes, note.tax_cents), strict=True)
    ]
    net, tax = note.sign * note.credit_cents * NANO_PER_CENT, note.sign * note.tax_cents * NANO_PER_CENT
    back = note.sign < 0
    lines = Table(
        "Paid back" if back else "Not paid back",
        (Column("Description"), MONEY),
        ((note.line, net),),
        (("Net", net), ("Tax", tax), ("Total paid back" if back else "Total", net + tax)),
    )
    return Document(
        title=note.title,
        # The parties of the paper that it corrects, whatever their profiles say by now.
        parties=document_of(note.corrects).parties,
        facts=(("Corrects", f"{note.corrects.name} of {note.corrects.issued_at:%Y-%m-%d}"), *note.facts),
        tables=(lines, *tax_table(shares, sign=note.sign)),
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
