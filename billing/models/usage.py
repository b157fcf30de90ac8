"""One row for each charged prediction, for invoices, earnings and the usage explorer.

The table is range-partitioned by month (migration 0002 creates it; Django knows only its columns), append-only, and
carries the price so that replaying it reproduces every charge. Idempotency lives in the unpartitioned holds.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class Usage(models.Model):
    """Tokens and nano-dollars of one prediction, posted to the month in which it was settled."""

    pk = models.CompositePrimaryKey("prediction_id", "created_at")
    prediction_id = models.UUIDField()
    created_at = models.DateTimeField(db_default=Now())
    organization_id = models.UUIDField()
    api_key_id = models.UUIDField(null=True)
    model_name = models.CharField(max_length=128)
    model_id = models.UUIDField()
    version_id = models.UUIDField(null=True)
    creator_organization_id = models.UUIDField()
    replica_id = models.UUIDField(null=True)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    input_micro_usd_per_mtok = models.BigIntegerField()
    cached_input_micro_usd_per_mtok = models.BigIntegerField()
    output_micro_usd_per_mtok = models.BigIntegerField()
    per_prediction_nano_usd = models.BigIntegerField()
    price_id = models.BigIntegerField(null=True)
    latency_class = models.CharField(max_length=12, default="standard", db_default="standard")
    class_bps = models.PositiveIntegerField(default=10_000, db_default=10_000)
    split_id = models.BigIntegerField()
    allowance_nano_usd = models.BigIntegerField(default=0, db_default=0)  # of the price, paid by free allowances
    attempt = models.SmallIntegerField(default=1, db_default=1)
    cost_nano_usd = models.BigIntegerField()
    finish_reason = models.CharField(max_length=32)
    receipt = models.TextField()  # the JWT that the replica signed

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["organization_id", "-created_at"], name="billing_usage_organization"),
            models.Index(fields=["creator_organization_id", "-created_at"], name="billing_usage_creator"),
        ]


class DroppedUsage(models.Model):
    """A month whose single predictions were dropped (`billing_drop_usage`), and what they came to. Append-only."""

    month = models.DateField(primary_key=True)
    predictions = models.BigIntegerField()
    cost_nano_usd = models.BigIntegerField()
    dropped_at = models.DateTimeField(db_default=Now())
