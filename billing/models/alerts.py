"""Alerts about budgets, and the addresses of webhooks."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from marketplace.accounts.models import Organization


class BudgetAlert(models.Model):
    """A node's spending reached a part of one of its limits, or a request was refused by it: once per period and limit.

    Nodes may be deleted, so the alert keeps what it was about.
    """

    class Period(models.TextChoices):
        DAY = "day"
        MONTH = "month"
        TOTAL = "total"  # `period_start` is 1970-01-01

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    node_id = models.UUIDField()
    node_kind = models.CharField(max_length=12)
    node_name = models.CharField(max_length=100)
    period = models.CharField(max_length=5, choices=Period)
    period_start = models.DateField()
    percent = models.PositiveSmallIntegerField()  # 50, 80 or 100
    refused = models.BooleanField(default=False, db_default=False)  # a request was refused by the limit
    limit_nano_usd = models.BigIntegerField()
    spent_nano_usd = models.BigIntegerField()  # with what was set aside, where a request was refused
    created_at = models.DateTimeField(db_default=Now())
    announced_at = models.DateTimeField(null=True)  # the organization was told

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node_id", "period", "period_start", "limit_nano_usd", "percent"],
                name="billing_alert_once",
            ),
            models.CheckConstraint(condition=Q(percent__in=(50, 80, 100)), name="billing_alert_percent"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["organization", "-id"], name="billing_alert_organization"),
            models.Index(fields=["id"], condition=Q(announced_at__isnull=True), name="billing_alert_new"),
        ]


class Webhook(models.Model):
    """An address that an organization's events go to. Its secret follows from id and version and is not stored."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    url = models.CharField(max_length=500)
    events = ArrayField(models.CharField(max_length=40), default=list, db_default=["alert.*"])  # that it asked for
    secret_version = models.PositiveSmallIntegerField(default=1, db_default=1)
    previous_secret_until = models.DateTimeField(null=True)  # signatures of the version before go along until then
    failing_since = models.DateTimeField(null=True)  # of all attempts since then, none arrived
    disabled_at = models.DateTimeField(null=True)  # nothing is posted
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "url"], name="billing_webhook_unique_url")
        ]
