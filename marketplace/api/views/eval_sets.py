"""Sealed sets of rows: a package each, uploaded in pieces."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.errors import InvalidInput
from marketplace.api.errors import not_found
from marketplace.api.fields import Base64UrlField
from marketplace.api.parsers import RawParser
from marketplace.api.serializers import IntakeKey, Scorer
from marketplace.api.views.base import ControlView
from marketplace.api.views.versions import UPLOAD_OFFSET, chunk_of
from marketplace.catalog.blobs import MAX_CHUNK_SIZE
from marketplace.evals import selectors
from marketplace.evals.models import EvalSet
from marketplace.evals.sets import MAX_PACKAGE_SIZE, append_set_chunk, complete_set, start_set, upload_offset
from marketplace.vault import selectors as vault_selectors
from protocol.eval_rows import MAX_ROWS
from protocol.names import DIGEST_PATTERN


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


def owned_set(view: ControlView, set_id: UUID) -> EvalSet:
    """Return a set of the caller's organization; any other is not found."""
    found = selectors.owned_set(organization=view.organization, set_id=set_id)
    if found is None:
        raise not_found("set")
    return found
