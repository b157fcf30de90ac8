"""The subjects that were erased, by id alone: a restored backup is erased of the same subjects again."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class Erasure(models.Model):
    """One erased person or organization, by id alone. Append-only."""

    class Subject(models.TextChoices):
        USER = "user"
        ORGANIZATION = "organization"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    subject = models.CharField(max_length=12, choices=Subject)
    subject_id = models.UUIDField()
    erased_by = models.UUIDField(null=True)  # a user's id; null is an operator's command
    left_nano_usd = models.BigIntegerField(default=0)  # balance that was given up; it stays in the books
    erased_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["subject", "subject_id"], name="privacy_erasure_once"),
        ]
