"""Money set aside for a prediction in flight. Amounts are nano-dollars.

Rows are written by the functions of migrations 0020 and 0025 alone (billing/hotpath.py calls them).
"""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.models.ledger import Account


class Hold(models.Model):
    """The worst case of one prediction, at the price it was promised. A hold has the id of its prediction.

    Organizations, keys, models and replicas are plain UUIDs: a foreign key would lock the referenced row for each
    prediction, and billing does not know the catalogue's tables.
    """

    class State(models.TextChoices):
        OPEN = "open"
        SETTLED = "settled"  # charged `cost_nano_usd`, the rest given back
        RELEASED = "released"  # all given back

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="holds", db_index=False)
    organization_id = models.UUIDField()
    api_key_id = models.UUIDField(null=True)
    amount_nano_usd = models.BigIntegerField()
    state = models.CharField(max_length=8, choices=State, default=State.OPEN)

    input_micro_usd_per_mtok = models.BigIntegerField()
    cached_input_micro_usd_per_mtok = models.BigIntegerField()
    output_micro_usd_per_mtok = models.BigIntegerField()
    per_prediction_nano_usd = models.BigIntegerField()
    price_id = models.BigIntegerField(null=True)  # of the catalogue
    latency_class = models.CharField(max_length=12, default="standard", db_default="standard")
    class_bps = models.PositiveIntegerField(default=10_000, db_default=10_000)  # 10,000 is 1 x
    # Set aside of the listing's free allowances; the amount is what is left to pay.
    monthly_allowance_nano_usd = models.BigIntegerField(default=0, db_default=0)
    introductory_allowance_nano_usd = models.BigIntegerField(default=0, db_default=0)
    split_id = models.BigIntegerField()
    model_name = models.CharField(max_length=128)
    model_id = models.UUIDField()
    version_id = models.UUIDField(null=True)
    creator_organization_id = models.UUIDField()

    idempotency_key = models.CharField(max_length=255, null=True)
    request_hash = models.BinaryField(max_length=32)  # SHA-256 of the request body
    replica_id = models.UUIDField(null=True)
    budget_path = ArrayField(models.UUIDField(), default=list, db_default=[])  # the nodes it counts on, root first
    run_id = models.UUIDField(null=True)  # of the run that the prediction is a call of; its node is in the path
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    close_reason = models.CharField(max_length=64, blank=True, default="", db_default="")
    cost_nano_usd = models.BigIntegerField(null=True)
    allowance_used_nano_usd = models.BigIntegerField(null=True)
    settled_in = models.BigIntegerField(null=True)  # the database transaction, set by a trigger (migration 0011)

    # The attempt in progress: `replica_id` has it since `dispatched_at`. A receipt settles its own attempt alone.
    attempt = models.SmallIntegerField(default=1, db_default=1)
    dispatched_at = models.DateTimeField(db_default=Now())
    gateway_id = models.UUIDField(null=True)  # the gateway process that answers the client
    # The grant: what the ticket allows, and so the most that a receipt may claim.
    adapter = models.TextField(null=True)  # package digest; null is the bare base
    base = models.TextField(blank=True, default="", db_default="")  # fingerprint of the base model
    max_prompt_tokens = models.BigIntegerField()
    max_tokens = models.BigIntegerField()
    # A gateway's verdict: at most so many completion tokens reached the client. Null is no verdict.
    delivered_tokens = models.BigIntegerField(null=True)
    verdict_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            # A key may be used again after a release, and 24 h after a charge. `billing_place_holds` sees to that under
            # the wallet's lock, so that the constraint is about open holds alone.
            models.UniqueConstraint(
                fields=["account", "idempotency_key"],
                condition=Q(state="open") & Q(idempotency_key__isnull=False),
                name="billing_hold_unique_idempotency_key",
            ),
            models.CheckConstraint(condition=Q(amount_nano_usd__gte=0), name="billing_hold_amount_not_negative"),
            models.CheckConstraint(
                condition=Q(
                    input_micro_usd_per_mtok__gte=0,
                    cached_input_micro_usd_per_mtok__gte=0,
                    output_micro_usd_per_mtok__gte=0,
                    per_prediction_nano_usd__gte=0,
                ),
                name="billing_hold_price_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(
                    class_bps__gte=0, monthly_allowance_nano_usd__gte=0, introductory_allowance_nano_usd__gte=0
                ),
                name="billing_hold_class_and_allowance_fit",
            ),
            models.CheckConstraint(
                condition=Q(state="open", closed_at__isnull=True, cost_nano_usd__isnull=True)
                | Q(state="released", closed_at__isnull=False, cost_nano_usd__isnull=True)
                | Q(
                    state="settled",
                    closed_at__isnull=False,
                    cost_nano_usd__isnull=False,  # a comparison with null would let the row pass
                    allowance_used_nano_usd__isnull=False,
                    cost_nano_usd__gte=0,
                    cost_nano_usd__lte=F("amount_nano_usd"),
                    allowance_used_nano_usd__gte=0,
                    allowance_used_nano_usd__lte=F("monthly_allowance_nano_usd") + F("introductory_allowance_nano_usd"),
                ),
                name="billing_hold_state_fits",
            ),
            models.CheckConstraint(
                condition=Q(attempt__gte=1, max_prompt_tokens__gte=0, max_tokens__gte=0), name="billing_hold_grant_fits"
            ),
            models.CheckConstraint(
                condition=Q(delivered_tokens__isnull=True, verdict_at__isnull=True)
                | Q(delivered_tokens__isnull=False, delivered_tokens__gte=0, verdict_at__isnull=False),
                name="billing_hold_verdict_fits",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["expires_at"], condition=Q(state="open"), name="billing_hold_open_expiry"),
            models.Index(
                fields=["account", "idempotency_key", "-created_at"],
                condition=Q(idempotency_key__isnull=False),
                name="billing_hold_idempotency",
            ),
            models.Index(
                fields=["model_id", "closed_at"],
                condition=Q(state="released", close_reason="length"),  # an answer that was cut off, and so is free
                name="billing_hold_cut_off",
            ),
            models.Index(fields=["closed_at"], condition=Q(state="released"), name="billing_hold_released"),
            models.Index(
                fields=["run_id", "created_at", "id"], condition=Q(run_id__isnull=False), name="billing_hold_run"
            ),
            models.Index(fields=["settled_in"], condition=Q(settled_in__isnull=False), name="billing_hold_settled_in"),
        ]


class GatewayProcess(models.Model):
    """A gateway process and when it last said that it is alive. No row means silent for a day or more."""

    id = models.UUIDField(primary_key=True, editable=False)
    host = models.TextField()
    started_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_gateway"
