"""The payees of a prediction: immutable snapshots that holds and usage point to."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.ledger import CurrentTransactionId


class Split(models.Model):
    """A set of parts. Equal parts are one row, found by `digest` (billing/splits.py); a row never changes."""

    id = models.BigAutoField(primary_key=True)
    digest = models.BinaryField(max_length=32, unique=True)  # SHA-256 of the parts in order
    created_at = models.DateTimeField(db_default=Now())
    # Parts join only in the database transaction that wrote this row; afterwards it is closed.
    database_transaction = models.BigIntegerField(db_default=CurrentTransactionId())


class SplitPart(models.Model):
    """One payee's share in basis points. The basis points of a split sum to 10,000."""

    class Reason(models.TextChoices):
        CREATOR = "creator"  # the seller of the listing
        UPSTREAM = "upstream"  # the listing that this one is derived from
        BLEND = "blend"  # an adapter that was blended in
        REFERRAL = "referral"  # the organization that brought the customer
        PLATFORM = "platform"  # no organization: the remainder

    pk = models.CompositePrimaryKey("split_id", "place")
    split = models.ForeignKey(Split, on_delete=models.PROTECT, related_name="parts", db_index=False)
    place = models.SmallIntegerField()  # ties of a division go to the smaller place
    organization_id = models.UUIDField(null=True)  # null is the platform
    basis_points = models.IntegerField()
    reason = models.CharField(max_length=8, choices=Reason)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(basis_points__gte=0, basis_points__lte=10_000), name="billing_split_part_range"
            ),
            models.CheckConstraint(
                condition=Q(reason="platform", organization_id__isnull=True)
                | (~Q(reason="platform") & Q(organization_id__isnull=False)),
                name="billing_split_part_platform_is_nobody",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["organization_id"], name="billing_split_part_payee")]
