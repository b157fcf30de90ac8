"""The rules by which a creator protects a model, and what is known of each customer of such a model."""

from __future__ import annotations

from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model

MAX_CALLS_PER_DAY = 1_000_000


class Measure(models.TextChoices):
    """The measure against a customer whose calls look like the making of a copy."""

    TELL = "tell"  # the creator is told, and nothing else
    SLOW = "slow"  # one call in five minutes
    ASK = "ask"  # the introductory allowance, until the creator has answered
    STOP = "stop"  # 403, with a way to appeal


class Protection(models.Model):
    """The rules of one model. A model without a row has none: log-probabilities closed, nothing counted."""

    model = models.OneToOneField(Model, on_delete=models.CASCADE, primary_key=True, related_name="protection")
    # Whether callers of versions without a contract may ask for log-probabilities; a contract says so itself.
    logprobs_open = models.BooleanField(default=False, db_default=False)
    # Calls per day (UTC) in the first week of a customer, doubled in each week after it; null: as many as they like.
    calls_per_day = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(MAX_CALLS_PER_DAY)]
    )
    on_copying = models.CharField(max_length=4, choices=Measure, blank=True)  # empty: no message is counted
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(calls_per_day__isnull=True) | Q(calls_per_day__range=(1, MAX_CALLS_PER_DAY)),
                name="protection_calls_in_range",
            )
        ]


class Customer(models.Model):
    """One organization that calls one protected model. The gateway makes the row at the first call."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="customers")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    first_seen_at = models.DateTimeField(db_default=Now())  # of its first call ever, also from before the rules
    trusted_at = models.DateTimeField(null=True)  # by the creator's click, or by time and paid calls: no rule applies
    granted_calls_per_day = models.PositiveIntegerField(null=True)  # by the creator's click
    noticed_at = models.DateTimeField(null=True)  # when its calls looked like the making of a copy
    noticed_distinct = models.PositiveIntegerField(default=0, db_default=0)  # different messages then
    noticed_calls = models.PositiveIntegerField(default=0, db_default=0)
    evenness_permille = models.PositiveSmallIntegerField(null=True)  # of the answers; null: they are no closed set
    told_at = models.DateTimeField(null=True)  # when the creator was told of the notice
    measure = models.CharField(max_length=4, choices=Measure, blank=True)  # the creator's answer; empty: the model's
    asked_at = models.DateTimeField(null=True)  # when it asked for more; null again once the creator has answered
    asked_calls_per_day = models.PositiveIntegerField(null=True)
    asked_told_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "organization"], name="protection_customer_once")
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["id"],
                condition=Q(noticed_at__isnull=False, told_at__isnull=True)
                | Q(asked_at__isnull=False, asked_told_at__isnull=True),
                name="protection_customer_untold",
            ),
            models.Index(fields=["organization"], name="protection_customer_payer"),
        ]
