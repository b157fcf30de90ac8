"""Credit by its origin: each top-up and each promotion is a lot, drawn in a fixed order. Amounts are nano-dollars."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.ledger import Account, LedgerTransaction


class Lot(models.Model):
    """Credit that came at once. `remaining` is `opening` plus the sum of the entries that name the lot.

    Lots are drawn promotional first, those that expire soonest before others, and then the oldest; the rests of an
    account's lots sum to its balance. Triggers keep `remaining`.
    """

    class Kind(models.TextChoices):
        PAID = "paid"  # a top-up: never expires
        PROMOTIONAL = "promotional"

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="lots", db_index=False)
    kind = models.CharField(max_length=12, choices=Kind)
    remaining = models.BigIntegerField(default=0, db_default=0)
    opening = models.BigIntegerField(default=0, db_default=0)  # the rest of credit older than lots
    expires_at = models.DateTimeField(null=True)
    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="lots")  # its origin
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(remaining__gte=0, opening__gte=0), name="billing_lot_not_negative"),
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(kind="promotional"), name="billing_lot_paid_never_expires"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["account", "id"], condition=Q(remaining__gt=0), name="billing_lot_rest"),
            models.Index(
                fields=["expires_at"],
                condition=Q(remaining__gt=0, expires_at__isnull=False),
                name="billing_lot_expiry",
            ),
        ]
