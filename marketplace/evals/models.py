"""Sets of sealed rows, their runs, and the calls of a run. No row, answer or label is in the database."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from marketplace.accounts.models import ApiKey, Organization
from marketplace.catalog.models import BaseModel, Model, Version
from marketplace.vault.models import SigningKey

MOST_COMPARED = 1_000  # rows of a set that a run on a checkpoint asks


class EvalSet(models.Model):
    """The rows of an evaluation as their creator sealed them: a package of suite 3 (docs/package-format.md)."""

    class State(models.TextChoices):
        UPLOADING = "uploading"
        READY = "ready"
        REFUSED = "refused"  # the package, or a row of it, breaks a rule

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="eval_sets")
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="eval_sets")
    number = models.PositiveIntegerField()
    scorer = models.JSONField()  # `protocol.eval_rows.Scorer`
    rows = models.PositiveIntegerField()  # as announced; a package with another number of rows is refused
    signing_key = models.ForeignKey(SigningKey, on_delete=models.PROTECT, related_name="+")
    package_size = models.PositiveBigIntegerField()  # bytes of ciphertext, as announced
    package_digest = models.CharField(max_length=64, null=True, unique=True)
    wrapped_key = models.BinaryField(null=True)  # by the creator's key (marketplace/vault/rows_keys.py)
    state = models.CharField(max_length=12, choices=State, default=State.UPLOADING)
    refusal = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "number"], name="evals_set_number_unique"),
            models.CheckConstraint(
                condition=~Q(state="ready") | Q(package_digest__isnull=False, wrapped_key__isnull=False),
                name="evals_ready_set_is_whole",
            ),
        ]


class EvalRun(models.Model):
    """One set on one version, beside the base. It is done with a figure, or has failed with a reason and none."""

    class State(models.TextChoices):
        WAITING = "waiting"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"

    OPEN: ClassVar = (State.WAITING, State.RUNNING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    eval_set = models.ForeignKey(EvalSet, on_delete=models.PROTECT, related_name="runs")
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="eval_runs")
    # The version of a guard: the run asks it about each row, to set the threshold of a guard of this version's model.
    guard = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, related_name="+")
    # The platform's own run, which costs nothing: it asks the version on this checkpoint and on the reference.
    checkpoint = models.ForeignKey(BaseModel, on_delete=models.PROTECT, null=True, related_name="+")
    state = models.CharField(max_length=8, choices=State, default=State.WAITING)
    reason = models.CharField(max_length=300, blank=True, default="")  # of a failure: a sentence without a row's text
    budget_nano_usd = models.BigIntegerField()
    spent_nano_usd = models.BigIntegerField(default=0, db_default=0)
    purse = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, related_name="+")  # while it is open
    calls_done = models.PositiveIntegerField(default=0, db_default=0)
    claimed_until = models.DateTimeField(null=True)  # a worker has it until then, and says so again while it lives
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["eval_set", "version"],
                condition=Q(state__in=("waiting", "running"), checkpoint__isnull=True),
                name="evals_one_open_run",
            ),
            models.UniqueConstraint(
                fields=["version", "checkpoint"],
                condition=Q(state__in=("waiting", "running"), checkpoint__isnull=False),
                name="evals_one_open_measurement",
            ),
            models.CheckConstraint(
                condition=Q(spent_nano_usd__gte=0, budget_nano_usd__gte=F("spent_nano_usd")),
                name="evals_run_within_budget",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["created_at"], condition=Q(state__in=("waiting", "running")), name="evals_open_runs")
        ]

    @property
    def calls(self) -> int:
        """Return how many calls the run makes: each row is asked of the adapter and of the base, or of a guard.

        A guard reads a long row in pieces, so its calls are counted by rows. The platform's own run on a checkpoint
        asks the first rows twice.
        """
        if self.checkpoint_id:
            return 2 * min(self.eval_set.rows, MOST_COMPARED)
        return self.eval_set.rows if self.guard_id else 2 * self.eval_set.rows


class EvalCall(models.Model):
    """One call of a run that is done: which prediction it was, and whether its answer was right."""

    run = models.ForeignKey(EvalRun, on_delete=models.PROTECT, related_name="judged_calls")
    row = models.PositiveIntegerField()  # from 1, in the order of the set
    base = models.BooleanField()  # of the base without the adapter's weights
    right = models.BooleanField()
    prediction_id = models.UUIDField(unique=True)
    receipt_sha256 = models.BinaryField(max_length=32, null=True)  # of the replica's receipt; null: it cost nothing

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "row", "base"], name="evals_call_once"),
        ]


class ModelGuard(models.Model):
    """The guard of a model, and the threshold that its creator's own rows set: the outcome of a run that is done."""

    model = models.OneToOneField(Model, on_delete=models.CASCADE, primary_key=True, related_name="attack_guard")
    guard = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    run = models.ForeignKey(EvalRun, on_delete=models.PROTECT, related_name="+")
    threshold_milli = models.IntegerField()  # log-odds in thousandths of a nat; a text above it is refused
    rows = models.PositiveIntegerField()
    flagged = models.PositiveIntegerField()  # of the rows, by this threshold
    created_at = models.DateTimeField(db_default=Now())
