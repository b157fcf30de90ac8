"""The trees of receipts, one for each day (UTC), and the heads that were published of them.

A tree only grows: its leaves never change their place, which triggers see to. Leaves are kept 1,024 to a row, as bytes:
48 bytes for each charge.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

SEGMENT = 1024  # leaves of a full segment: a power of two, so that each is a whole subtree


class Day(models.Model):
    """How far the charges of a day are in its tree: those settled up to (`read_to`, `read_to_id`), and later finds."""

    day = models.DateField(primary_key=True)
    leaves = models.BigIntegerField(default=0)
    charges = models.BigIntegerField(default=0)  # looked at, those that cannot be proven too
    read_to = models.DateTimeField(null=True)
    read_to_id = models.UUIDField(null=True)


class Segment(models.Model):
    """Leaves `number` × 1,024 and following of a day."""

    pk = models.CompositePrimaryKey("day", "number")
    day = models.DateField()
    number = models.IntegerField()
    ids = models.BinaryField()  # of the predictions, 16 bytes each
    hashes = models.BinaryField()  # of the leaves, 32 bytes each
    root = models.BinaryField(max_length=32)  # of the subtree over them
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()


class Head(models.Model):
    """A published root: what the platform can never take back. Append-only."""

    sequence = models.BigIntegerField(primary_key=True)
    day = models.DateField()
    size = models.BigIntegerField()
    statement = models.TextField()  # as signed
    hash = models.BinaryField(max_length=32)  # SHA-256 of its payload, which the next head names
    published_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["day", "size"], name="receipts_head_grows")]
