"""Papers for accountants: billing profiles, issued papers with their numbers, and what Stripe knows about a payment.

A paper is a snapshot: what it says is stored once, and never changes. A file of it is kept as it was first printed.
"""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from billing.models.payments import TopUp
from marketplace.accounts.models import Organization, User


class BillingProfile(models.Model):
    """The legal person behind an organization, as its papers name it. The platform's own is that of `intarsia`."""

    organization = models.OneToOneField(
        Organization, on_delete=models.CASCADE, primary_key=True, related_name="billing_profile"
    )
    legal_name = models.CharField(max_length=120)
    email = models.EmailField(max_length=254, blank=True)
    line1 = models.CharField(max_length=120)
    line2 = models.CharField(max_length=120, blank=True)
    postal_code = models.CharField(max_length=20, blank=True)
    city = models.CharField(max_length=80)
    region = models.CharField(max_length=80, blank=True)
    country = models.CharField(max_length=2)  # ISO 3166-1 alpha-2
    tax_id = models.CharField(max_length=40, blank=True)  # as billing/papers/tax_ids.py writes it
    updated_at = models.DateTimeField(db_default=Now())
    updated_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")


class PaymentDetail(models.Model):
    """The payer and the tax of one paid top-up, as Stripe has them; written once, when it is credited."""

    top_up = models.OneToOneField(TopUp, on_delete=models.PROTECT, primary_key=True, related_name="payment_detail")
    payer = models.JSONField(null=True)  # fields of `billing.stripe.tax.Payer`
    taxes = models.JSONField()  # a list of fields of `billing.stripe.tax.TaxAmount`


class PaperNumber(models.Model):
    """The last number given out in a series. Locked while a paper is issued, so that a series has no gap."""

    series = models.CharField(max_length=16, primary_key=True)  # such as INV-2026
    last = models.IntegerField(default=0, db_default=0)


class Paper(models.Model):
    """One issued paper. Written by `billing_issue_paper` alone, and never changed: a mistake gets a credit note."""

    class Kind(models.TextChoices):
        RECEIPT = "receipt"  # of one top-up; subject: the top-up's id
        CREDIT_NOTE = "credit_note"  # takes back (a part of) a receipt; subject: the ledger transaction's id
        INVOICE = "invoice"  # of one organization and month; subject: organization and month
        EARNINGS = "earnings"  # a payee's statement of a month; subject: organization and month

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=Kind)
    series = models.CharField(max_length=16)
    number = models.IntegerField()
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="papers")
    subject = models.CharField(max_length=80)
    period = models.DateField(null=True)  # first day of the month, for papers of a month
    corrects = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="corrected_by")
    total_nano_usd = models.BigIntegerField()  # tax included; negative on a credit note
    tax_nano_usd = models.BigIntegerField()
    content = models.JSONField()  # `billing.papers.document.Document`
    issued_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["series", "number"], name="billing_paper_unique_number"),
            models.UniqueConstraint(fields=["kind", "subject"], name="billing_paper_unique_subject"),
        ]
        indexes: ClassVar = [models.Index(fields=["organization", "-issued_at"], name="billing_paper_organization")]

    @property
    def name(self) -> str:
        """Return the paper's number as it is printed: INV-2026-000042."""
        return f"{self.series}-{self.number:06d}"


class PaperFile(models.Model):
    """A file of a paper as it was first printed: a later program, library or font changes nothing about it."""

    class Kind(models.TextChoices):
        PDF = "pdf"
        CSV = "csv"

    paper = models.ForeignKey(Paper, on_delete=models.PROTECT, related_name="files", db_index=False)
    kind = models.CharField(max_length=3, choices=Kind)
    content = models.BinaryField()
    printed_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["paper", "kind"], name="billing_paperfile_printed_once")
        ]
