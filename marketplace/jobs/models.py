"""Files, batches with their lines, and predictions in the background. Amounts are nano-dollars.

Texts of customers are encrypted with the key of their organization, for the row that they stand in.
"""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from marketplace.accounts.models import ApiKey, Organization


class File(models.Model):
    """Lines of JSON, in sealed chunks. While it arrives it has no `ready_at`, and nobody sees it."""

    class Purpose(models.TextChoices):
        BATCH = "batch"
        BATCH_OUTPUT = "batch_output"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="files", db_index=False)
    purpose = models.CharField(max_length=12, choices=Purpose)
    name = models.CharField(max_length=200)
    endpoint = models.CharField(max_length=40, blank=True, default="")  # that all lines of an input ask
    bytes = models.BigIntegerField()  # in the clear; while the file arrives, the most that may come
    lines = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())
    ready_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["organization", "-created_at", "-id"], name="jobs_files_of_organization"),
            models.Index(fields=["expires_at"], name="jobs_files_expiring"),
        ]

    @property
    def public_id(self) -> str:
        return f"file-{self.pk.hex}"


class FileChunk(models.Model):
    """Whole lines of a file, packed and sealed for this chunk's id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    file = models.ForeignKey(File, on_delete=models.CASCADE, related_name="chunks", db_index=False)
    number = models.PositiveIntegerField()  # from 0
    sealed = models.BinaryField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["file", "number"], name="jobs_chunk_number")]


class Batch(models.Model):
    """The lines of one file, asked within a day in the name of one key."""

    class State(models.TextChoices):
        VALIDATING = "validating"
        FAILED = "failed"
        IN_PROGRESS = "in_progress"
        FINALIZING = "finalizing"
        COMPLETED = "completed"
        EXPIRED = "expired"
        CANCELLING = "cancelling"
        CANCELLED = "cancelled"

    OPEN = (State.VALIDATING, State.IN_PROGRESS, State.CANCELLING, State.FINALIZING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="batches", db_index=False)
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="+")  # pays, with its budgets
    has_purse = models.BooleanField(default=False)  # the key was made for this batch, and ends with it
    endpoint = models.CharField(max_length=40)
    input_file = models.ForeignKey(File, on_delete=models.SET_NULL, null=True, related_name="+")
    output_file = models.OneToOneField(File, on_delete=models.SET_NULL, null=True, related_name="+")
    error_file = models.OneToOneField(File, on_delete=models.SET_NULL, null=True, related_name="+")
    metadata = models.JSONField(default=dict)
    request_hash = models.BinaryField(max_length=32)  # of the request that made it: a retry is the same
    state = models.CharField(max_length=12, choices=State, default=State.VALIDATING)
    ends_as = models.CharField(max_length=12, choices=State, default=State.COMPLETED)
    reason = models.CharField(max_length=200, blank=True, default="")  # why it failed or was cancelled
    reason_code = models.CharField(max_length=40, blank=True, default="")
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cost_nano_usd = models.BigIntegerField(default=0)
    typical_nano_usd = models.BigIntegerField(null=True)
    worst_nano_usd = models.BigIntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True)
    cancelling_at = models.DateTimeField(null=True)
    finalizing_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(db_default=Now())  # the worker that validates or finalizes it has it until then

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["organization", "-created_at", "-id"], name="jobs_batches_of_organization"),
            models.Index(
                fields=["created_at"],
                condition=Q(state__in=["validating", "in_progress", "cancelling", "finalizing"]),
                name="jobs_batches_open",
            ),
        ]

    @property
    def public_id(self) -> str:
        return f"batch_{self.pk.hex}"

    @property
    def is_open(self) -> bool:
        return self.state in self.OPEN

    @property
    def done(self) -> int:
        return self.completed + self.failed


class Call(models.Model):
    """One paid call that a worker makes.

    `due_at`: while it waits, the time of the next try; while it runs, the end of its worker's claim.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        RUNNING = "running"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"

    OPEN = (State.WAITING, State.RUNNING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    due_at = models.DateTimeField(db_default=Now())
    tries = models.PositiveIntegerField(default=0)
    request = models.BinaryField(null=True)  # sealed; gone when it has ended
    outcome = models.BinaryField(null=True)  # sealed
    prediction_id = models.UUIDField(null=True)
    cost_nano_usd = models.BigIntegerField(default=0)

    class Meta:
        abstract = True


class BatchLine(Call):
    """One line. Its outcome is kept until it stands in a file of the batch."""

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="lines", db_index=False)
    number = models.PositiveIntegerField()  # in the input file, from 1

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["batch", "number"], name="jobs_line_number")]
        indexes: ClassVar = [
            models.Index(
                fields=["batch", "number"], condition=Q(state__in=["waiting", "running"]), name="jobs_lines_open"
            ),
            models.Index(fields=["due_at"], condition=Q(state="running"), name="jobs_lines_running"),
        ]


class AsyncPrediction(Call):
    """One prediction that is fetched later."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="+")
    endpoint = models.CharField(max_length=40)
    webhook = models.BooleanField(default=False)
    request_hash = models.BinaryField(max_length=32)
    status_code = models.PositiveSmallIntegerField(null=True)  # of the answer
    error_code = models.CharField(max_length=60, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()  # it is deleted then

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["organization", "-created_at", "-id"], name="jobs_predictions_of_org"),
            models.Index(
                fields=["organization", "created_at"],
                condition=Q(state__in=["waiting", "running"]),
                name="jobs_predictions_open",
            ),
            models.Index(fields=["expires_at"], name="jobs_predictions_expiring"),
        ]

    @property
    def public_id(self) -> str:
        return f"pred_{self.pk.hex}"
