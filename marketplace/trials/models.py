"""Runs and their rows. Amounts are nano-dollars."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from marketplace.accounts.models import ApiKey, Organization
from marketplace.trials import shuffling


class Trial(models.Model):
    """One comparison. Which of the two models is side A follows from the seed, which nobody is shown before the end."""

    class Scoring(models.TextChoices):
        JSON = "json"  # the answer is the expected one
        FIELDS = "fields"  # more of the named fields are right
        JUDGE = "judge"  # the consumer says, in the browser

    class State(models.TextChoices):
        RUNNING = "running"
        ENDED = "ended"

    class End(models.TextChoices):
        DECIDED = "decided"
        ROWS = "rows"
        BUDGET = "budget"
        CANCELLED = "cancelled"
        CREDIT = "credit"
        WITHDRAWN = "withdrawn"
        STOPPED = "stopped"  # the key was revoked or has expired
        UNAVAILABLE = "unavailable"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="trials", db_index=False)
    first = models.CharField(max_length=128)  # org/slug@number, as it was named first
    second = models.CharField(max_length=128)
    scoring = models.CharField(max_length=8, choices=Scoring)
    fields = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    budget_nano_usd = models.BigIntegerField()
    seed = models.BinaryField(max_length=shuffling.SEED_BYTES)
    purse = models.OneToOneField(ApiKey, on_delete=models.PROTECT, related_name="trial")
    rows_count = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=State, default=State.RUNNING)
    # While it runs: why no further call is made, though the judge has answers to see.
    ended_by = models.CharField(max_length=12, choices=End, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    leased_until = models.DateTimeField(db_default=Now())  # the worker that makes its calls has it until then
    rows_deleted_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["organization", "-created_at"], name="trials_of_organization"),
            models.Index(fields=["leased_until"], condition=Q(state="running"), name="trials_running"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(state="running", ended_at__isnull=True) | Q(state="ended", ended_at__isnull=False),
                name="trials_state_fits",
            )
        ]

    @property
    def seed_hash(self) -> str:
        return shuffling.commitment(bytes(self.seed))

    @property
    def ended(self) -> bool:
        return self.state == self.State.ENDED

    def model_of(self, side: str) -> str:
        """Return the model of side A or B. Show it to nobody while the run goes on."""
        is_first = shuffling.first_is_a(bytes(self.seed)) == (side == "A")
        return self.first if is_first else self.second

    def a_is_left(self, number: int) -> bool:
        """Return whether side A is on the left in a row."""
        return shuffling.a_is_left(bytes(self.seed), number)


class TrialRow(models.Model):
    """One row. `sealed` and `answers` are encrypted with the organization's key, and null once they were deleted.

    winner: -1 side A, 1 side B, 0 neither; null while the row was not answered, or not judged.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    trial = models.ForeignKey(Trial, on_delete=models.CASCADE, related_name="rows", db_index=False)
    number = models.PositiveIntegerField()  # from 1
    sealed = models.BinaryField(null=True)
    answers = models.BinaryField(null=True)  # of A and B, where the consumer judges
    answered_at = models.DateTimeField(null=True)
    winner = models.SmallIntegerField(null=True)
    refused = models.BooleanField(default=False)  # the API refuses the row for a side: it counts for neither
    a_cost_nano_usd = models.BigIntegerField(default=0)
    b_cost_nano_usd = models.BigIntegerField(default=0)
    a_prediction_id = models.UUIDField(null=True)
    b_prediction_id = models.UUIDField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["trial", "number"], name="trials_row_number"),
            models.CheckConstraint(
                condition=Q(winner__isnull=True) | Q(winner__in=[-1, 0, 1], answered_at__isnull=False),
                name="trials_row_winner_fits",
            ),
        ]
