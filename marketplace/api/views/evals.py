"""Evaluations: runs of sealed sets, and what is public of them. No operation takes a score."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.limited_keys import require_no_budget
from marketplace.api.errors import not_found
from marketplace.api.fields import Base64UrlField
from marketplace.api.serializers import ModelEvaluation
from marketplace.api.views.base import ControlView
from marketplace.api.views.eval_sets import owned_set
from marketplace.api.views.model_guards import guard_named
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Version
from marketplace.evals import selectors
from marketplace.evals.models import EvalRun, EvalSet
from marketplace.evals.quotes import worst_case
from marketplace.evals.runs import MAX_BUDGET_NANO_USD, start_run
from marketplace.receipts.selectors import receipt_document

VERSION = serializers.IntegerField(
    min_value=1, max_value=2**31 - 1, required=False, help_text="the default version if left out"
)

GUARD = serializers.CharField(
    max_length=100, required=False, help_text="org/slug of a guard: the run sets its threshold for the model"
)


class RunShape(serializers.Serializer):  # shows an EvalRun
    id = serializers.UUIDField()
    set_id = serializers.UUIDField(source="eval_set_id")
    set = serializers.IntegerField(source="eval_set.number")
    model = serializers.CharField(source="version.model.full_name")
    version = serializers.IntegerField(source="version.number")
    guard = serializers.CharField(
        source="guard.model.full_name", allow_null=True, default=None, help_text="the run sets its threshold; or null"
    )
    checkpoint = serializers.CharField(
        source="checkpoint.name",
        allow_null=True,
        default=None,
        help_text="the platform's own run, which is free: the version there and on the reference; or null",
    )
    state = serializers.CharField(help_text="waiting, running, done or failed")
    reason = serializers.CharField(help_text="of a failed run, or empty")
    calls_done = serializers.IntegerField()
    calls = serializers.IntegerField(help_text="each row is asked of the version and of its base")
    budget_nano_usd = serializers.IntegerField()
    spent_nano_usd = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)


class RunQuoteView(ControlView):
    """The worst case of a run."""

    scopes: ClassVar = {"GET": ("publish",)}

    class QuoteQuery(serializers.Serializer):
        version = VERSION
        guard = GUARD

    class Quote(serializers.Serializer):
        version = serializers.IntegerField(source="version.number")
        worst_case_nano_usd = serializers.IntegerField()

    @extend_schema(operation_id="quote_eval_run", parameters=[QuoteQuery], responses=Quote)
    def get(self, request: Request, set_id: UUID) -> Response:
        """The most that a run of this set can cost; a run without a budget of its own has this one."""
        found = owned_set(self, set_id)
        wanted = self.parse(self.QuoteQuery, query=True)
        version = measured_version(found, wanted.get("version"))
        guard = guard_named(wanted.get("guard"), self.organization)
        worst = worst_case(eval_set=found, version=version, guard=guard)
        quote = {"version": version, "worst_case_nano_usd": worst}
        return Response(self.show(self.Quote, quote))


class SetRunsView(ControlView):
    """Runs of one set."""

    scopes: ClassVar = {"POST": ("publish",)}

    class StartRun(serializers.Serializer):
        version = VERSION
        budget_nano_usd = serializers.IntegerField(
            min_value=1, max_value=MAX_BUDGET_NANO_USD, required=False, help_text="the worst case if left out"
        )

        guard = GUARD

    @extend_schema(operation_id="start_eval_run", request=StartRun, responses={201: RunShape})
    def post(self, request: Request, set_id: UUID) -> Response:
        """Measure a published version with this set, at the organization's expense and within the budget."""
        require_no_budget("a run")
        found = owned_set(self, set_id)
        wanted = self.parse(self.StartRun)
        version = measured_version(found, wanted.pop("version", None))
        guard = guard_named(wanted.pop("guard", None), self.organization)
        run = start_run(eval_set=found, version=version, guard=guard, **wanted)
        return Response(self.show(RunShape, run), status=201)


class ModelRunsView(ControlView):
    """The runs of one model."""

    scopes: ClassVar = {"GET": ("publish", "read")}

    @extend_schema(operation_id="list_eval_runs", responses=RunShape(many=True))
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The runs of one's own model, newest first, failed ones too."""
        return self.page(selectors.runs_of(model=self.owned_model(org, slug)), RunShape)


class RunView(ControlView):
    """One run."""

    scopes: ClassVar = {"GET": ("publish", "read")}

    @extend_schema(operation_id="get_eval_run", responses=RunShape)
    def get(self, request: Request, run_id: UUID) -> Response:
        """A run of one's own: how far it is, or how it ended."""
        found = selectors.owned_run(organization=self.organization, run_id=run_id)
        if found is None:
            raise not_found("run")
        return Response(self.show(RunShape, found))


class EvaluationsView(ControlView):
    """The figures of one model."""

    public = frozenset({"GET"})

    @extend_schema(operation_id="list_evaluations", responses=ModelEvaluation(many=True), auth=[])
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The evaluations of the model's published versions, newest first; its creator sees those of all versions."""
        model = catalog.visible_model(org_slug=org, slug=slug, viewer=self.caller.organization)
        if model is None:
            raise not_found("model")
        rows = catalog.evaluations_of(model=model)
        viewer = self.caller.organization
        if viewer is None or viewer.pk != model.organization_id:
            rows = rows.filter(version__state=Version.State.PUBLISHED)
        return self.page(rows, ModelEvaluation)


class EvaluationCallsView(ControlView):
    """The receipts of one evaluation."""

    public = frozenset({"GET"})

    class Call(serializers.Serializer):
        row = serializers.IntegerField()
        base = serializers.BooleanField(help_text="asked of the base, under the same contract")
        right = serializers.BooleanField()
        prediction_id = serializers.UUIDField()
        receipt_sha256 = Base64UrlField(allow_null=True, help_text="of the replica's receipt; null: the call was free")

    @extend_schema(operation_id="list_evaluation_calls", responses=Call(many=True), auth=[])
    def get(self, request: Request, run_id: UUID) -> Response:
        """Each call of an evaluation, with the hash of its receipt and whether its answer was right; no texts."""
        run = public_run(self, run_id)
        return self.page(selectors.calls_of(run=run), self.Call, ordering=("row", "base"))


class EvaluationReceiptView(ControlView):
    """One receipt of an evaluation."""

    public = frozenset({"GET"})

    @extend_schema(operation_id="get_evaluation_receipt", responses=OpenApiTypes.OBJECT, auth=[])
    def get(self, request: Request, run_id: UUID, prediction_id: UUID) -> HttpResponse:
        """The signed receipt of a call of an evaluation: a file for `intarsia receipt verify` and the receipts page."""
        run = public_run(self, run_id)
        if not selectors.calls_of(run=run).filter(prediction_id=prediction_id).exists():
            raise not_found("receipt")
        document = receipt_document(run.eval_set.organization, prediction_id)
        return HttpResponse(document, content_type="application/json")


def public_run(view: ControlView, run_id: UUID) -> EvalRun:
    """Return a run that is done and may be seen; any other is not found."""
    found = selectors.public_run(run_id=run_id, viewer=view.caller.organization)
    if found is None:
        raise not_found("evaluation")
    return found[0]


def measured_version(eval_set: EvalSet, number: int | None) -> Version:
    """Return the set's model in its version of this number, in its default version without; 404 if there is none."""
    model = eval_set.model
    versions = catalog.versions_of(model=model, published_only=False)
    found = catalog.default_version(model=model) if number is None else versions.filter(number=number).first()
    if found is None:
        raise not_found("version")
    return found
