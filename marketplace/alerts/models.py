"""Alerts of an organization, their deliveries, how far each member has read, and the kinds that are muted."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models import Webhook
from marketplace.accounts.models import Organization, User


class Alert(models.Model):
    """One message to one organization, stored once per kind and `once`."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=40)
    once = models.CharField(max_length=200)
    subject = models.CharField(max_length=200)
    text = models.TextField()
    data = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "kind", "once"], name="alerts_alert_once")
        ]
        indexes: ClassVar = [models.Index(fields=["organization", "-id"], name="alerts_alert_feed")]


class Delivery(models.Model):
    """One alert on its way to one webhook, or by e-mail to the organization's members where `webhook` is null."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="deliveries")
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, null=True, related_name="+")
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    next_attempt_at = models.DateTimeField(db_default=Now(), null=True)  # null: delivered, or given up
    delivered_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=200, blank=True, default="", db_default="")  # of the last attempt

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["next_attempt_at"],
                condition=Q(next_attempt_at__isnull=False),
                name="alerts_delivery_waiting",
            )
        ]


class Mute(models.Model):
    """Alerts of this kind are shown in the feed, and neither mailed nor posted."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=40)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["organization", "kind"], name="alerts_mute_once")]


class Seen(models.Model):
    """One member has read an organization's alerts up to this one."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    alert_id = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["organization", "user"], name="alerts_seen_once")]
