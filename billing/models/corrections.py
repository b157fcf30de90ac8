"""Charges given back, whole or in part. Amounts are nano-dollars."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.holds import Hold
from billing.models.ledger import LedgerTransaction


class Correction(models.Model):
    """A part of a prediction's cost that was given back. Append-only; the corrections of one prediction sum to its cost
    at most, which the database sees to.

    Those who earned the charge bear a correction together, in proportion, or one of them alone out of its share.
    A correction of 0 is that of a prediction that cost nothing: it says that the prediction was not delivered.
    """

    class Bearer(models.TextChoices):
        ALL = "all"
        PLATFORM = "platform"
        PAYEE = "payee"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    prediction = models.ForeignKey(Hold, on_delete=models.PROTECT, related_name="corrections")
    amount_nano_usd = models.BigIntegerField()
    reason = models.CharField(max_length=64)
    bearer = models.CharField(max_length=8, choices=Bearer, default="all", db_default="all")
    bearer_organization_id = models.UUIDField(null=True)  # the payee that bears it alone
    transaction = models.OneToOneField(
        LedgerTransaction, on_delete=models.PROTECT, null=True, related_name="correction"
    )
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(amount_nano_usd=0, transaction__isnull=True)
                | Q(amount_nano_usd__gt=0, transaction__isnull=False),
                name="billing_correction_moves_its_amount",
            ),
            models.CheckConstraint(
                condition=Q(bearer__in=["all", "platform"], bearer_organization_id__isnull=True)
                | Q(bearer="payee", bearer_organization_id__isnull=False),
                name="billing_correction_bearer_fits",
            ),
        ]
