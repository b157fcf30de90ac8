"""Sums of usage and earnings: what pages and the API read instead of predictions. Amounts are nano-dollars.

The function `billing_roll_up` alone writes these rows (billing/rollups/services.py calls it). All sums are after
corrections: a part of a cost that was given back is taken off the day (UTC) of its prediction.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

NO_SUBJECT = "00000000-0000-0000-0000-000000000000"  # also the organization of the platform's sums


class UsageDay(models.Model):
    """The usage of one organization on a day of one version, by one line of API keys (null: the playground)."""

    day = models.DateField()
    organization_id = models.UUIDField()
    key_line = models.UUIDField(null=True)  # the line's first key
    model_id = models.UUIDField()
    version_id = models.UUIDField(null=True)
    latency_class = models.CharField(max_length=16)
    model_name = models.CharField(max_length=128)
    predictions = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    charged_nano_usd = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization_id", "day", "model_id", "key_line", "version_id", "latency_class"],
                nulls_distinct=False,
                name="billing_usageday_unique",
            )
        ]


class EarningsDay(models.Model):
    """The earnings of one payee on a day by one version: the creator, and whoever else has a part in its split."""

    day = models.DateField()
    organization_id = models.UUIDField()  # the payee
    reason = models.CharField(max_length=16)  # of its part in the split
    model_id = models.UUIDField()
    version_id = models.UUIDField(null=True)
    latency_class = models.CharField(max_length=16)
    model_name = models.CharField(max_length=128)
    predictions = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    charged_nano_usd = models.BigIntegerField()  # what the customers paid
    earned_nano_usd = models.BigIntegerField()  # this payee's part of it: ledger entries

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization_id", "day", "reason", "model_id", "version_id", "latency_class"],
                nulls_distinct=False,
                name="billing_earningsday_unique",
            )
        ]
        indexes: ClassVar = [  # versions of some models of a creator of thousands
            models.Index(fields=["organization_id", "model_id", "day"], name="billing_earningsday_model"),
        ]


class SpanTotal(models.Model):
    """Sums over a span of days (billing/rollups/spans.py), for one facet and subject of one organization."""

    class Facet(models.TextChoices):
        USAGE = "usage"  # of a customer; no subject
        USAGE_MODEL = "usage_model"  # subject: a model
        USAGE_KEY = "usage_key"  # subject: the first key of a line, or `NO_SUBJECT` for the playground
        EARNINGS = "earnings"  # of a payee; no subject
        EARNINGS_MODEL = "earnings_model"  # subject: a model
        PLATFORM = "platform"  # of everybody; `earned` is what all payees earned

    pk = models.CompositePrimaryKey("facet", "organization_id", "span", "start", "subject")
    facet = models.CharField(max_length=16, choices=Facet)
    organization_id = models.UUIDField()
    span = models.SmallIntegerField()  # days; 0 is all time
    start = models.DateField()
    subject = models.UUIDField()
    label = models.CharField(max_length=128)  # the model's name
    predictions = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    charged_nano_usd = models.BigIntegerField()
    earned_nano_usd = models.BigIntegerField()
    customers = models.BigIntegerField()  # of a payee in this span; 0 for other facets


class SpanCustomer(models.Model):
    """A customer of a payee in a span, so that customers are counted once; by model for all time alone."""

    pk = models.CompositePrimaryKey("organization_id", "subject", "span", "start", "customer_id")
    organization_id = models.UUIDField()
    subject = models.UUIDField()  # a model, or `NO_SUBJECT` for all of them
    span = models.SmallIntegerField()
    start = models.DateField()
    customer_id = models.UUIDField()


class PaidWeek(models.Model):
    """Paid credit that one organization spent on one model in a week (from Monday, UTC), by the lot that it came from.

    Promotional credit and free allowances are in no row. The lot leads to the top-up, and so to card and disputes.
    """

    pk = models.CompositePrimaryKey("model_id", "week", "organization_id", "lot_id")
    model_id = models.UUIDField()
    week = models.DateField()
    organization_id = models.UUIDField()
    lot_id = models.BigIntegerField()
    paid_nano_usd = models.BigIntegerField()


class RollupQueue(models.Model):
    """A usage row or a correction that no sum has counted yet: written by triggers, in the same transaction."""

    id = models.BigAutoField(primary_key=True)
    prediction_id = models.UUIDField()
    settled_at = models.DateTimeField()  # the usage row's time
    correction_id = models.UUIDField(null=True)


class RollupMark(models.Model):
    """Everything that was committed before `complete_at` is in the sums. One row; it is locked while sums change."""

    id = models.SmallIntegerField(primary_key=True)
    complete_at = models.DateTimeField(null=True)
