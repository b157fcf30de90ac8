"""Reads: the runs of an organization, how far one is, and the pair that waits for its judge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet, Sum

from marketplace.accounts.models import Organization
from marketplace.trials import sealing
from marketplace.trials.evidence import Step, better, path
from marketplace.trials.models import Trial, TrialRow
from marketplace.vault.ciphers import cipher_of

AHEAD = 16  # answered rows that may wait for their judge: what is not judged was paid in vain


@dataclass(frozen=True, slots=True)
class Progress:
    """A run as of now; the names of the sides are None until it has ended."""

    trial: Trial
    steps: tuple[Step, ...]
    rows_answered: int
    rows_refused: int
    a_cost_nano_usd: int
    b_cost_nano_usd: int
    winner: str  # A, B, or empty
    last_answer: datetime | None

    @property
    def rows_done(self) -> int:
        return len(self.steps)

    @property
    def cost_nano_usd(self) -> int:
        return self.a_cost_nano_usd + self.b_cost_nano_usd

    @property
    def last(self) -> Step | None:
        return self.steps[-1] if self.steps else None

    @property
    def a_model(self) -> str | None:
        return self.trial.model_of("A") if self.trial.ended else None

    @property
    def b_model(self) -> str | None:
        return self.trial.model_of("B") if self.trial.ended else None

    @property
    def seed(self) -> str | None:
        """Return the seed in hex once the run has ended."""
        return bytes(self.trial.seed).hex() if self.trial.ended else None

    @property
    def rows_left(self) -> int:
        """Return the rows that can still be done, within the budget at the cost of a row so far."""
        if self.trial.ended:
            return 0
        left = self.trial.rows_count - self.rows_done
        if not self.rows_answered or not self.cost_nano_usd:
            return left
        per_row = max(1, self.cost_nano_usd // self.rows_answered)
        return min(left, max(0, self.trial.budget_nano_usd - self.cost_nano_usd) // per_row)

    @property
    def seconds_left(self) -> int | None:
        """Return the time that those rows take at the speed so far; None before the first, or if a person judges."""
        if self.last_answer is None or not self.rows_answered or self.trial.scoring == Trial.Scoring.JUDGE:
            return None
        elapsed = (self.last_answer - self.trial.created_at).total_seconds()
        return round(elapsed / self.rows_answered * self.rows_left)


@dataclass(frozen=True, slots=True, repr=False)
class Pair:
    """Two answers to one message, by the sides of the screen alone."""

    row_id: UUID
    number: int
    message: str
    left: str
    right: str


def trials_of(organization: Organization) -> QuerySet[Trial]:
    """Return the runs of `organization`, newest first."""
    return Trial.objects.filter(organization=organization).select_related("purse").order_by("-created_at", "-id")


def trial_of(organization: Organization, trial_id: UUID) -> Trial | None:
    """Return one run of `organization`, or None."""
    return trials_of(organization).filter(pk=trial_id).first()


def progress_of(trial: Trial) -> Progress:
    """Return how far a run is: the e-value runs over answered rows in their order, whatever order they came in."""
    rows = TrialRow.objects.filter(trial=trial)
    sums = rows.aggregate(a=Sum("a_cost_nano_usd"), b=Sum("b_cost_nano_usd"))
    answered = rows.filter(answered_at__isnull=False)
    steps = tuple(path(_winners(trial)))
    return Progress(
        trial=trial,
        steps=steps,
        rows_answered=answered.count(),
        rows_refused=rows.filter(refused=True).count(),
        a_cost_nano_usd=sums["a"] or 0,
        b_cost_nano_usd=sums["b"] or 0,
        winner=better(steps[-1] if steps else None),
        last_answer=answered.order_by("-answered_at").values_list("answered_at", flat=True).first(),
    )


def end_of(trial: Trial) -> Trial.End | None:
    """Return why a run has come to its end, or None while there is something left to do."""
    winners = _winners(trial)
    steps = path(winners)
    if steps and steps[-1].decided:
        return Trial.End.DECIDED
    if len(winners) == trial.rows_count:
        return Trial.End.ROWS
    # No further call is made, and the judge has seen all that was answered.
    return Trial.End(trial.ended_by) if trial.ended_by and not judgeable(trial).exists() else None


def rows_to_answer(trial: Trial, *, limit: int) -> list[TrialRow]:
    """Return the next rows whose calls are due, in order; none while enough of them wait for their judge."""
    if trial.ended_by:
        return []
    if trial.scoring == Trial.Scoring.JUDGE:
        limit = min(limit, AHEAD - judgeable(trial).count())
    waiting = TrialRow.objects.filter(trial=trial, answered_at=None, sealed__isnull=False)
    return list(waiting.order_by("number")[: max(0, limit)])


def judgeable(trial: Trial) -> QuerySet[TrialRow]:
    """Return the rows that were answered and wait for their judge, in order."""
    return TrialRow.objects.filter(trial=trial, winner=None, answers__isnull=False).order_by("number")


def next_pair(trial: Trial) -> Pair | None:
    """Return the pair to judge next, each answer on the side where the seed puts it."""
    row = None if trial.ended or trial.scoring != Trial.Scoring.JUDGE else judgeable(trial).first()
    if row is None:
        return None
    cipher = cipher_of(trial.organization_id)
    a, b = sealing.open_answers(cipher, row)
    left, right = (a, b) if trial.a_is_left(row.number) else (b, a)
    return Pair(row.pk, row.number, sealing.open_row(cipher, row).message, left, right)


def _winners(trial: Trial) -> list[int]:
    """Return who won the rows up to the first that is open: a row that was answered early waits for those before it."""
    rows = TrialRow.objects.filter(trial=trial)
    first_open = rows.filter(winner=None).order_by("number").values_list("number", flat=True).first()
    done = rows.filter(Q() if first_open is None else Q(number__lt=first_open))
    return [winner for winner in done.order_by("number").values_list("winner", flat=True) if winner is not None]
