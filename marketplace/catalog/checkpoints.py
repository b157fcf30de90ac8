"""Base lines, and the clearance of a version for a checkpoint: the one rule by which it is served there, or is not.

A base line is one base model under one name, as several checkpoints: its reference, and what was made of it (FP8,
INT4, …). Adapters are made for the line and served on the reference. On any other checkpoint a version is served only
once it is cleared: its rows gave there what they give on the reference, or its creator gave leave.
"""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import ExpressionWrapper, F, Q
from django.db.models.functions import Now

MAX_CHECKPOINTS = 16  # of one line
MOST_LOST_PERCENT = 2  # points of accuracy that a checkpoint may lose against the reference

# The checkpoints, as their fingerprints, that `catalog_version v` is cleared for.
CLEARED_SQL = """ARRAY(
    SELECT c.fingerprint FROM catalog_clearance k JOIN catalog_basemodel c ON c.id = k.checkpoint_id
    WHERE k.version_id = v.id AND k.is_cleared)"""


class BaseLine(models.Model):
    """One base model under one name; `checkpoints` are its files, one of them the reference."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100, unique=True)
    created_at = models.DateTimeField(db_default=Now())


class BaseModel(models.Model):
    """A checkpoint of a base line, as replicas serve it; listings name the reference of theirs.

    `fingerprint` is protocol.checkpoints.checkpoint_fingerprint: of the files, and of what a replica makes of them.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    line = models.ForeignKey(BaseLine, on_delete=models.PROTECT, related_name="checkpoints")
    is_reference = models.BooleanField()
    name = models.CharField(max_length=100)
    precision = models.CharField(max_length=60, default="", db_default="", blank=True)  # in words
    fingerprint = models.CharField(max_length=64, unique=True)
    config = models.JSONField()  # the Hugging Face config.json, for the strict intake's shapes
    context_length = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["line"], condition=Q(is_reference=True), name="base_line_one_reference")
        ]


class Clearance(models.Model):
    """One version on one checkpoint that is not its line's reference: what was measured there, and the creator's word.

    `is_cleared` is computed by the database, so that every reader goes by one rule. Rows are made by the platform
    (`marketplace.evals.clearing`), and nobody else can make one.
    """

    class State(models.TextChoices):
        WAITING = "waiting"  # for rows, or for replicas; `reason` says which
        MEASURING = "measuring"
        PASSED = "passed"
        FAILED = "failed"  # it lost too much, or could not be measured; `reason` says which

    class Leave(models.TextChoices):
        NONE = ""
        GIVEN = "given"  # by the creator: served there whatever was measured
        REFUSED = "refused"  # never served there

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    version = models.ForeignKey("catalog.Version", on_delete=models.CASCADE, related_name="clearances")
    checkpoint = models.ForeignKey("catalog.BaseModel", on_delete=models.PROTECT, related_name="clearances")
    state = models.CharField(max_length=9, choices=State, default=State.WAITING, db_default=State.WAITING)
    reason = models.CharField(max_length=300, default="", db_default="", blank=True)
    leave = models.CharField(max_length=7, choices=Leave, default="", db_default="", blank=True)
    leave_at = models.DateTimeField(null=True)
    run_id = models.UUIDField(null=True)  # the run that measures it, or measured it last
    tries = models.PositiveSmallIntegerField(default=0, db_default=0)  # runs that ended without a figure
    not_before = models.DateTimeField(db_default=Now())  # of the next try
    set_number = models.PositiveIntegerField(null=True)
    rows = models.PositiveIntegerField(null=True)  # null: not measured
    correct = models.PositiveIntegerField(null=True)
    reference_correct = models.PositiveIntegerField(null=True)
    same_answers = models.PositiveIntegerField(null=True)
    measured_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    is_cleared = models.GeneratedField(
        expression=ExpressionWrapper(
            Q(leave="given") | Q(leave="", state="passed"), output_field=models.BooleanField()
        ),
        output_field=models.BooleanField(),
        db_persist=True,
    )

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["version", "checkpoint"], name="clearance_unique"),
            models.CheckConstraint(
                condition=Q(rows__isnull=True, correct__isnull=True, reference_correct__isnull=True)
                | Q(
                    rows__gte=1,
                    correct__lte=F("rows"),
                    reference_correct__lte=F("rows"),
                    same_answers__lte=F("rows"),
                ),
                name="clearance_within_rows",
            ),
            models.CheckConstraint(condition=~Q(state="passed") | Q(rows__isnull=False), name="clearance_was_measured"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["not_before"], condition=Q(state="waiting"), name="clearance_waiting"),
        ]

    @property
    def accuracy_bps(self) -> int | None:
        """Return the accuracy on the checkpoint in hundredths of a percent, None if it was not measured."""
        return self._bps(self.correct)

    @property
    def reference_bps(self) -> int | None:
        """Return the accuracy on the reference, on the same rows."""
        return self._bps(self.reference_correct)

    @property
    def same_bps(self) -> int | None:
        """Return the share of the answers that are the same text on both."""
        return self._bps(self.same_answers)

    def _bps(self, count: int | None) -> int | None:
        return None if count is None or self.rows is None else round(10_000 * count / self.rows)


def is_close(*, rows: int, correct: int, reference_correct: int) -> bool:
    """Return whether a checkpoint lost at most two points of accuracy against the reference, on the same rows."""
    return 100 * (reference_correct - correct) <= MOST_LOST_PERCENT * rows
