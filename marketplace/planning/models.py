"""Files that staff give plans, and the plans. Nothing here belongs to an organization."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class PlanFile(models.Model):
    """A file that plans are made from; the newest of its kind, subject and base counts. Append-only: plans name theirs.

    subject, base: of a profile, the accelerator that it was measured on and its base's fingerprint; else empty
    """

    class Kind(models.TextChoices):
        PROFILE = "profile", "Profile of a replica (python -m capacity calibrate)"
        PRICES = "prices", "Prices"
        CATALOGUE = "catalogue", "Accelerators"
        PROMISES = "promises", "Promises and terms"

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=9, choices=Kind)
    subject = models.CharField(max_length=100, blank=True, default="")
    base = models.CharField(max_length=64, blank=True, default="")
    content = models.TextField()
    sha256 = models.CharField(max_length=64)
    by = models.UUIDField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [models.Index(fields=["kind", "subject", "base", "-id"], name="plan_file_newest")]

    @property
    def name(self) -> str:
        """Return the file's name within a plan: its kind, and of a profile what it is about."""
        return " ".join(part for part in (self.kind, self.subject, self.base[:12]) if part)


class Plan(models.Model):
    """One plan, and what became of it. result: as `python -m capacity plan --json` wrote it.

    by: null: made by the schedule; usage: the usage file that it was made from, for the review a month later
    """

    class State(models.TextChoices):
        WAITING = "waiting", "Waiting"
        RUNNING = "running", "Being made"
        DONE = "done", "Made"
        FAILED = "failed", "Not made"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    state = models.CharField(max_length=7, choices=State, default=State.WAITING)
    error = models.CharField(max_length=2000, blank=True, default="")
    files = models.JSONField(default=dict)  # kind or "profile ACCELERATOR BASE" → SHA-256
    result = models.JSONField(null=True)
    review = models.JSONField(null=True)  # of the plan before, as `python -m capacity review --json` wrote it
    by = models.UUIDField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["-created_at"], name="plan_newest_first")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["state"], condition=models.Q(state="waiting"), name="plan_one_waits"),
            models.UniqueConstraint(fields=["state"], condition=models.Q(state="running"), name="plan_one_runs"),
        ]
