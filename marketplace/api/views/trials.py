"""Blind comparisons of two models."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.errors import not_found
from marketplace.api.idempotency import IDEMPOTENCY_KEY, id_for, key_reused
from marketplace.api.views.base import ControlView
from marketplace.trials import selectors, services
from marketplace.trials.models import Trial
from marketplace.trials.rows import MAX_BYTES, MAX_ROWS, check_rows
from marketplace.trials.scoring import MOST_FIELDS

_ENVELOPE = 2**16  # bytes of a request beside its rows


class TrialSide(serializers.Serializer):
    model = serializers.CharField(allow_null=True, help_text="org/slug@version; null until the run has ended")
    wins = serializers.IntegerField(help_text="rows that this side alone had right, or had more right of")
    cost_nano_usd = serializers.IntegerField()


class TrialPage(serializers.Serializer):
    id = serializers.UUIDField(source="trial.id")
    models = serializers.SerializerMethodField(help_text="as they were named; which of them is A is known at the end")
    scoring = serializers.CharField(source="trial.scoring")
    fields_compared = serializers.ListField(source="trial.fields", child=serializers.CharField())
    state = serializers.CharField(source="trial.state")
    ended_by = serializers.SerializerMethodField()
    seed_sha256 = serializers.CharField(source="trial.seed_hash", help_text="of the seed, drawn before the first call")
    seed = serializers.CharField(allow_null=True, help_text="in hex, once the run has ended")
    rows = serializers.IntegerField(source="trial.rows_count")
    rows_done = serializers.IntegerField()
    rows_refused = serializers.IntegerField()
    log_e = serializers.SerializerMethodField(help_text="natural logarithm of the e-value; decided at log 20")
    winner = serializers.CharField(help_text="A, B, or empty: not decided")
    a = serializers.SerializerMethodField()
    b = serializers.SerializerMethodField()
    budget_nano_usd = serializers.IntegerField(source="trial.budget_nano_usd")
    created_at = serializers.DateTimeField(source="trial.created_at")
    ended_at = serializers.DateTimeField(source="trial.ended_at", allow_null=True)
    rows_deleted_at = serializers.DateTimeField(source="trial.rows_deleted_at", allow_null=True)

    def get_models(self, progress: selectors.Progress) -> list[str]:
        return sorted((progress.trial.first, progress.trial.second))

    def get_ended_by(self, progress: selectors.Progress) -> str:
        return progress.trial.ended_by if progress.trial.ended else ""

    def get_log_e(self, progress: selectors.Progress) -> float:
        return round(progress.last.log_e, 6) if progress.last else 0.0

    @extend_schema(responses=TrialSide)
    def get_a(self, progress: selectors.Progress) -> dict[str, Any]:
        wins = progress.last.a_wins if progress.last else 0
        return {"model": progress.a_model, "wins": wins, "cost_nano_usd": progress.a_cost_nano_usd}

    @extend_schema(responses=TrialSide)
    def get_b(self, progress: selectors.Progress) -> dict[str, Any]:
        wins = progress.last.b_wins if progress.last else 0
        return {"model": progress.b_model, "wins": wins, "cost_nano_usd": progress.b_cost_nano_usd}


class TrialSummary(serializers.Serializer):
    id = serializers.UUIDField()
    state = serializers.CharField()
    scoring = serializers.CharField()
    rows = serializers.IntegerField(source="rows_count")
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)


class TrialsView(ControlView):
    """Comparisons of the organization."""

    scopes: ClassVar = {"GET": ("predict", "account"), "POST": ("predict",)}
    max_body_size = MAX_BYTES + _ENVELOPE

    class StartTrial(serializers.Serializer):
        first = serializers.CharField(max_length=90, help_text="org/slug or org/slug@version")
        second = serializers.CharField(max_length=90)
        budget_nano_usd = serializers.IntegerField(min_value=1, max_value=services.MAX_BUDGET_NANO_USD)
        scoring = serializers.ChoiceField(Trial.Scoring.choices)
        fields_compared = serializers.ListField(
            child=serializers.CharField(max_length=64), max_length=MOST_FIELDS, default=list
        )
        rows = serializers.ListField(
            child=serializers.JSONField(),
            max_length=MAX_ROWS,
            help_text='objects {"message": text, "expected": any JSON}; `expected` in all of them or in none',
        )

    @extend_schema(operation_id="list_trials", responses=TrialSummary(many=True))
    def get(self, request: Request) -> Response:
        """Every comparison, newest first."""
        return self.page(selectors.trials_of(self.organization), TrialSummary)

    @extend_schema(
        operation_id="start_trial", request=StartTrial, parameters=[IDEMPOTENCY_KEY], responses={201: TrialPage}
    )
    def post(self, request: Request) -> Response:
        """Compare two models on rows of your own, blind. Both sides spend one budget."""
        wanted = self.parse(self.StartTrial)
        rows = check_rows(wanted["rows"])
        trial = services.start_trial(
            organization=self.organization,
            first=wanted["first"],
            second=wanted["second"],
            rows=rows,
            budget_nano_usd=wanted["budget_nano_usd"],
            scoring=Trial.Scoring(wanted["scoring"]),
            fields=wanted["fields_compared"],
            created_by=self.caller.user,
            trial_id=id_for(request, self.organization, "trial"),
        )
        if (trial.rows_count, trial.budget_nano_usd) != (len(rows), wanted["budget_nano_usd"]):
            raise key_reused()
        return Response(self.show(TrialPage, selectors.progress_of(trial)), status=201)


class _OneTrialView(ControlView):
    def owned_trial(self, trial_id: UUID) -> Trial:
        trial = selectors.trial_of(self.organization, trial_id)
        if trial is None:
            raise not_found("comparison")
        return trial

    def answer(self, trial: Trial) -> Response:
        return Response(self.show(TrialPage, selectors.progress_of(trial)))


class TrialView(_OneTrialView):
    """One comparison."""

    scopes: ClassVar = {"GET": ("predict", "account")}

    @extend_schema(operation_id="get_trial", responses=TrialPage)
    def get(self, request: Request, trial_id: UUID) -> Response:
        """Return the progress of a comparison. Looking at it as often as you like makes no verdict less certain."""
        return self.answer(self.owned_trial(trial_id))


class TrialPairView(_OneTrialView):
    """Blind judgement of a comparison whose rows say nothing of the right answer."""

    scopes: ClassVar = {"GET": ("predict",), "POST": ("predict",)}

    class TrialPair(serializers.Serializer):
        row_id = serializers.UUIDField()
        number = serializers.IntegerField()
        message = serializers.CharField()
        left = serializers.CharField(help_text="the answer of one side; no more is told of it")
        right = serializers.CharField()

    class JudgePair(serializers.Serializer):
        row_id = serializers.UUIDField()
        choice = serializers.ChoiceField(services.CHOICES, help_text="the better answer")

    @extend_schema(operation_id="get_trial_pair", responses=TrialPair)
    def get(self, request: Request, trial_id: UUID) -> Response:
        """Return the pair to judge next. 404 while there is none."""
        pair = selectors.next_pair(self.owned_trial(trial_id))
        if pair is None:
            raise not_found("pair to judge now")
        return Response(self.show(self.TrialPair, pair))

    @extend_schema(operation_id="judge_trial_pair", request=JudgePair, responses=TrialPage)
    def post(self, request: Request, trial_id: UUID) -> Response:
        """Say which answer of a pair is better. A pair is judged once."""
        trial = self.owned_trial(trial_id)
        services.judge_row(trial=trial, **self.parse(self.JudgePair))
        return self.answer(self.owned_trial(trial_id))


class CancelTrialView(_OneTrialView):
    """The end of a comparison by hand."""

    scopes: ClassVar = {"POST": ("predict",)}

    @extend_schema(operation_id="cancel_trial", request=None, responses=TrialPage)
    def post(self, request: Request, trial_id: UUID) -> Response:
        """Stop a comparison; calls in flight are charged. Idempotent."""
        trial = self.owned_trial(trial_id)
        services.cancel_trial(trial=trial)
        return self.answer(trial)


class TrialRowsView(_OneTrialView):
    """The rows of a comparison."""

    scopes: ClassVar = {"DELETE": ("predict",)}

    @extend_schema(operation_id="delete_trial_rows", responses={204: None})
    def delete(self, request: Request, trial_id: UUID) -> Response:
        """Delete the uploaded rows and the answers now, not 30 days after the end. A run that goes on is stopped."""
        services.delete_rows(trial=self.owned_trial(trial_id))
        return Response(status=204)
