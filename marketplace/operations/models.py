"""Rows of the status page: probes and their sums by day, incidents and maintenance with what was said about them.

Nothing here belongs to an organization. (`billing.models.Incident` is another thing: a contradiction in the books.)
"""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now


class Component(models.TextChoices):
    """The parts of the platform that a customer tells apart."""

    PREDICTIONS = "predictions", "Predictions"
    API = "api", "Control API"
    DASHBOARD = "dashboard", "Pages"
    PAYMENTS = "payments", "Payments"
    WEBHOOKS = "webhooks", "Alerts and webhooks"


class Probe(models.Model):
    """One look at one component. Kept for two days; `ProbeDay` has the sums."""

    id = models.BigAutoField(primary_key=True)
    component = models.CharField(max_length=16, choices=Component)
    at = models.DateTimeField(db_default=Now())
    ok = models.BooleanField()
    milliseconds = models.PositiveIntegerField()
    error = models.CharField(max_length=100, blank=True, default="")  # for staff

    class Meta:
        indexes: ClassVar = [models.Index(fields=["component", "-at"], name="probe_newest_first")]


class ProbeDay(models.Model):
    """The probes of one component on one day (UTC)."""

    component = models.CharField(max_length=16, choices=Component)
    day = models.DateField()
    good = models.PositiveIntegerField(default=0)
    bad = models.PositiveIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["component", "day"], name="probe_day_unique")]


class Incident(models.Model):
    """Trouble, or planned work, that staff tell customers of. `ends_at` is the planned end of maintenance."""

    class Kind(models.TextChoices):
        MINOR = "minor", "Slow or failing in part"
        MAJOR = "major", "Not working"
        MAINTENANCE = "maintenance", "Planned maintenance"

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=16, choices=Kind)
    title = models.CharField(max_length=120)
    components = ArrayField(models.CharField(max_length=16, choices=Component))
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [models.Index(fields=["-starts_at", "-id"], name="incident_newest_first")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=~models.Q(kind="maintenance")
                | models.Q(ends_at__isnull=False, ends_at__gt=models.F("starts_at")),
                name="maintenance_has_an_end",
            )
        ]


class Update(models.Model):
    """One message about an incident. Append-only: `by` is the id of the member of staff who wrote it."""

    class State(models.TextChoices):
        PLANNED = "planned", "Planned"
        INVESTIGATING = "investigating", "We are looking into it"
        IDENTIFIED = "identified", "The cause is known"
        WATCHING = "watching", "Fixed, and being watched"
        RESOLVED = "resolved", "Resolved"

    id = models.BigAutoField(primary_key=True)
    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="updates")
    state = models.CharField(max_length=16, choices=State)
    text = models.CharField(max_length=2000)
    by = models.UUIDField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering: ClassVar = ["-id"]
