"""Alerts and events of an organization, their deliveries, how far each member has read, and which kinds are muted."""

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


class Event(models.Model):
    """Something that happened to an organization's things and that a webhook of it asked for (`events.emit`)."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=40)
    data = models.JSONField()  # ids and counts
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [models.Index(fields=["created_at"], name="alerts_event_age")]


class Delivery(models.Model):
    """An alert or an event on its way to a webhook, or an alert by e-mail to members where `webhook` is null."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, null=True, related_name="deliveries")
    event = models.ForeignKey(Event, on_delete=models.CASCADE, null=True, related_name="deliveries")
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, null=True, related_name="deliveries")
    is_replay = models.BooleanField(default=False, db_default=False)  # a member asked for it again
    created_at = models.DateTimeField(db_default=Now())
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    next_attempt_at = models.DateTimeField(db_default=Now(), null=True)  # null: delivered, or given up
    delivered_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=200, blank=True, default="", db_default="")  # of the last attempt
    status = models.PositiveSmallIntegerField(null=True)  # that the receiver answered last

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(alert__isnull=False, event__isnull=True)
                | Q(alert__isnull=True, event__isnull=False, webhook__isnull=False),
                name="alerts_delivery_of_one",
            )
        ]
        indexes: ClassVar = [
            models.Index(fields=["webhook", "-id"], name="alerts_delivery_log"),
            models.Index(fields=["created_at"], name="alerts_delivery_age"),
            models.Index(
                fields=["next_attempt_at"],
                condition=Q(next_attempt_at__isnull=False),
                name="alerts_delivery_waiting",
            ),
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
