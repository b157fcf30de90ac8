"""Promises, what each month came to, and the refunds of a month. Amounts are nano-dollars."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model


class PromiseKind(models.TextChoices):
    """Ties a promise to who gives it: the platform its queue's time, the creator the form of the answers."""

    TTFT = "ttft"
    VALID = "valid"


class Promise(models.Model):
    """A bound from the month `starts_on` on. Append-only, and never of a month that has begun: a trigger refuses it.

    bound: milliseconds of TTFT that 95 % of calls stay within, or basis points of answers that are valid; null: the
    promise ends.
    """

    id = models.BigAutoField(primary_key=True)
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="promises", db_index=False)
    kind = models.CharField(max_length=8, choices=PromiseKind)
    bound = models.PositiveIntegerField(null=True)
    starts_on = models.DateField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [models.Index(fields=["model", "kind", "-starts_on", "-id"], name="promises_in_force")]


class Month(models.Model):
    """A promise in one month that is over, measured over all consumers. Append-only.

    value: p95 of TTFT in milliseconds, or basis points of valid answers; null: no call counted.
    """

    id = models.BigAutoField(primary_key=True)
    promise = models.ForeignKey(Promise, on_delete=models.PROTECT, related_name="months")
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="promise_months", db_index=False)
    kind = models.CharField(max_length=8, choices=PromiseKind)
    month = models.DateField()
    calls = models.PositiveBigIntegerField()
    missed = models.PositiveBigIntegerField()
    value = models.PositiveBigIntegerField(null=True)
    judged_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "kind", "month"], name="promises_month_judged_once"),
            models.CheckConstraint(condition=Q(missed__lte=F("calls")), name="promises_month_fits"),
        ]


class Refund(models.Model):
    """One consumer's refund of one month: `amount_nano_usd` is decided with the month, `paid_nano_usd` went back.

    Paid less than decided where other corrections took of the same share in between.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    month = models.ForeignKey(Month, on_delete=models.PROTECT, related_name="refunds", db_index=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="promise_refunds")
    bearer = models.ForeignKey(
        Organization, on_delete=models.PROTECT, null=True, related_name="promise_refunds_borne"
    )  # null: the platform
    calls = models.PositiveBigIntegerField()
    missed = models.PositiveBigIntegerField()
    spent_nano_usd = models.PositiveBigIntegerField()
    refund_bps = models.PositiveIntegerField()
    amount_nano_usd = models.PositiveBigIntegerField()
    paid_nano_usd = models.PositiveBigIntegerField(default=0)
    paid_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["month", "organization"], name="promises_refund_once"),
            models.CheckConstraint(
                condition=Q(
                    amount_nano_usd__lte=F("spent_nano_usd"),
                    paid_nano_usd__lte=F("amount_nano_usd"),
                    missed__lte=F("calls"),
                ),
                name="promises_refund_within_spending",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["id"], condition=Q(paid_at__isnull=True), name="promises_refund_due")]
