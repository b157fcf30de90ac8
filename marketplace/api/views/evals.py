"""Evaluations: sealed sets, their runs, and what is public of them. No operation takes a score."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.errors import InvalidInput
from marketplace.api.errors import not_found
from marketplace.api.fields import Base64UrlField
from marketplace.api.parsers import RawParser
from marketplace.api.serializers import IntakeKey, ModelEvaluation, Scorer
from marketplace.api.views.base import ControlView
from marketplace.api.views.model_guards import guard_named
from marketplace.api.views.versions import UPLOAD_OFFSET, chunk_of
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Version
from marketplace.evals import selectors
from marketplace.evals.models import EvalRun, EvalSet
from marketplace.evals.quotes import worst_case
from marketplace.evals.runs import MAX_BUDGET_NANO_USD, start_run
from marketplace.evals.sets import MAX_PACKAGE_SIZE, append_set_chunk, complete_set, start_set, upload_offset
from marketplace.publishing.uploads import MAX_CHUNK_SIZE
from marketplace.receipts.selectors import receipt_document
from marketplace.vault import selectors as vault_selectors
from protocol.eval_rows import MAX_ROWS
from protocol.names import DIGEST_PATTERN

VERSION = serializers.IntegerField(
    min_value=1, max_value=2**31 - 1, required=False, help_text="the default version if left out"
)

GUARD = serializers.CharField(
    max_length=100, required=False, help_text="org/slug of a guard: the run sets its threshold for the model"
)


class SetShape(serializers.Serializer):  # shows an EvalSet
    id = serializers.UUIDField()
    model = serializers.CharField(source="model.full_name")
    model_id = serializers.UUIDField()
    creator_id = serializers.UUIDField(source="organization_id")
    base_fingerprint = serializers.CharField(source="model.base_model.fingerprint")
    number = serializers.IntegerField()
    scorer = Scorer()
    rows = serializers.IntegerField()
    state = serializers.CharField(help_text="uploading, ready or refused")
    refusal = serializers.CharField(help_text="the row and the rule that it breaks, or empty")
    package_digest = serializers.CharField(allow_null=True)
    package_size = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class StartedSet(SetShape):
    intake_key = IntakeKey()


class RunShape(serializers.Serializer):  # shows an EvalRun
    id = serializers.UUIDField()
    set_id = serializers.UUIDField(source="eval_set_id")
    set = serializers.IntegerField(source="eval_set.number")
    model = serializers.CharField(source="version.model.full_name")
    version = serializers.IntegerField(source="version.number")
    guard = serializers.CharField(
        source="guard.model.full_name", allow_null=True, default=None, help_text="the run sets its threshold; or null"
    )
    state = serializers.CharField(help_text="waiting, running, done or failed")
    reason = serializers.CharField(help_text="of a failed run, or empty")
    calls_done = serializers.IntegerField()
    calls = serializers.IntegerField(help_text="each row is asked of the version and of its base")
    budget_nano_usd = serializers.IntegerField()
    spent_nano_usd = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)


class SetsView(ControlView):
    """The sets of rows of one model."""

    scopes: ClassVar = {"GET": ("publish", "read"), "POST": ("publish",)}

    class StartSet(serializers.Serializer):
        signing_key_id = serializers.UUIDField()
        package_size = serializers.IntegerField(min_value=1, max_value=MAX_PACKAGE_SIZE, help_text="bytes when sealed")
        rows = serializers.IntegerField(min_value=1, max_value=MAX_ROWS)
        scorer = Scorer()

    @extend_schema(operation_id="list_eval_sets", responses=SetShape(many=True))
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The sets of one's own model, newest first."""
        return self.page(selectors.sets_of(model=self.owned_model(org, slug)), SetShape, ordering=("-number",))

    @extend_schema(operation_id="start_eval_set", request=StartSet, responses={201: StartedSet})
    def post(self, request: Request, org: str, slug: str) -> Response:
        """Open the upload of the next set. Seal rows with the answer's ids and number, as a package of suite 3."""
        model = self.owned_model(org, slug)
        wanted = self.parse(self.StartSet)
        signing_key = vault_selectors.signing_key_of(
            organization=self.organization, key_id=wanted.pop("signing_key_id")
        )
        if signing_key is None:
            raise InvalidInput(
                "not a signing key of this organization; register it",
                code="unknown_signing_key",
                field="signing_key_id",
            )
        intake = vault_selectors.public_keys().intake
        started = start_set(model=model, signing_key=signing_key, **wanted)
        return Response(self.show(StartedSet, started, intake_key=intake), status=201)


class SetView(ControlView):
    """One set."""

    scopes: ClassVar = {"GET": ("publish", "read")}

    @extend_schema(operation_id="get_eval_set", responses=SetShape)
    def get(self, request: Request, set_id: UUID) -> Response:
        """A set of one's own."""
        return Response(self.show(SetShape, owned_set(self, set_id)))


class SetPackageView(ControlView):
    """The resumable upload of a set."""

    parser_classes: ClassVar = [RawParser]
    scopes: ClassVar = {"GET": ("publish",), "PUT": ("publish",)}
    max_body_size = MAX_CHUNK_SIZE
    http_method_names: ClassVar = ["head", "put", "options"]

    @extend_schema(operation_id="get_eval_set_offset", responses={200: None})
    def head(self, request: Request, set_id: UUID) -> Response:
        """`Upload-Offset`: how many bytes have arrived. `Upload-Length`: how many were announced."""
        found = owned_set(self, set_id)
        headers = {"Upload-Offset": str(upload_offset(eval_set=found)), "Upload-Length": str(found.package_size)}
        return Response(status=200, headers=headers)

    @extend_schema(
        operation_id="upload_eval_set_chunk",
        parameters=[UPLOAD_OFFSET],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={204: None},
    )
    def put(self, request: Request, set_id: UUID) -> Response:
        """Append up to 8 MiB at `Upload-Offset`. 409 with the right `Upload-Offset` if the upload is elsewhere."""
        found = owned_set(self, set_id)
        offset, length = chunk_of(request)
        reached = append_set_chunk(eval_set=found, offset=offset, stream=request.data, length=length)
        return Response(status=204, headers={"Upload-Offset": str(reached)})


class CompleteSetView(ControlView):
    """The end of the upload."""

    scopes: ClassVar = {"POST": ("publish",)}

    class CompleteSet(serializers.Serializer):
        digest = serializers.RegexField(DIGEST_PATTERN, help_text="of the package, in hex")
        wrapped_data_key = Base64UrlField(max_length=4000, help_text="wrapped to the intake key for this very package")

    @extend_schema(operation_id="complete_eval_set", request=CompleteSet, responses=SetShape)
    def post(self, request: Request, set_id: UUID) -> Response:
        """Check signature, digest and header, and take the data key. Rows are looked at when they are first run."""
        found = owned_set(self, set_id)
        return Response(self.show(SetShape, complete_set(eval_set=found, **self.parse(self.CompleteSet))))


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


def owned_set(view: ControlView, set_id: UUID) -> EvalSet:
    """Return a set of the caller's organization; any other is not found."""
    found = selectors.owned_set(organization=view.organization, set_id=set_id)
    if found is None:
        raise not_found("set")
    return found


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
