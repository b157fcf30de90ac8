"""A version's life: start, upload, complete, publish, retire, revoke; and who held its key."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.errors import InvalidInput, Refusal
from marketplace.api.errors import not_found
from marketplace.api.fields import Base64UrlField
from marketplace.api.parsers import RawParser
from marketplace.api.serializers import OwnVersion, PublicVersion, StartedVersion
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors
from marketplace.catalog.blobs import MAX_CHUNK_SIZE
from marketplace.publishing import services as publishing
from marketplace.publishing.selectors import with_reviews
from marketplace.publishing.uploads import MAX_PACKAGE_SIZE
from marketplace.publishing.versions import MAX_CHANGELOG
from marketplace.vault import selectors as vault_selectors
from protocol.names import DIGEST_PATTERN

UPLOAD_OFFSET = OpenApiParameter(
    "Upload-Offset", OpenApiTypes.INT64, OpenApiParameter.HEADER, required=True, description="where the chunk starts"
)


class VersionsView(ControlView):
    """The versions of one model."""

    public = frozenset({"GET"})
    scopes: ClassVar = {"POST": ("publish",)}

    class StartVersion(serializers.Serializer):
        signing_key_id = serializers.UUIDField()
        package_size = serializers.IntegerField(min_value=1, max_value=MAX_PACKAGE_SIZE, help_text="bytes when sealed")
        changelog = serializers.CharField(max_length=MAX_CHANGELOG, allow_blank=True, required=False, default="")

    @extend_schema(operation_id="list_versions", responses=PublicVersion(many=True), auth=[])
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Versions that are or were on sale, newest first; its own organization sees every version, with reports."""
        model = selectors.visible_model(org_slug=org, slug=slug, viewer=self.caller.organization)
        if model is None:
            raise not_found("model")
        own = self.caller.organization is not None and self.caller.organization.id == model.organization_id
        if own:
            versions = with_reviews(selectors.versions_of(model=model, published_only=False))
        else:
            versions = selectors.history_of(model=model)
        return self.page(versions, OwnVersion if own else PublicVersion, ordering=("-number",))

    @extend_schema(operation_id="start_version", request=StartVersion, responses={201: StartedVersion})
    def post(self, request: Request, org: str, slug: str) -> Response:
        """Open the upload of the next version. Seal with the answer's ids and number, then PUT to `upload_url`."""
        model = self.owned_model(org, slug)
        wanted = self.parse(self.StartVersion)
        signing_key = vault_selectors.signing_key_of(organization=self.organization, key_id=wanted["signing_key_id"])
        if signing_key is None:
            raise InvalidInput(
                "not a signing key of this organization; register it",
                code="unknown_signing_key",
                field="signing_key_id",
            )
        intake = vault_selectors.public_keys().intake
        version = publishing.start_version(
            model=model,
            signing_key=signing_key,
            package_size=wanted["package_size"],
            changelog=wanted["changelog"],
            by=self.person,
        )
        return Response(self.show(StartedVersion, version, intake_key=intake), status=201)


class VersionView(ControlView):
    """One version."""

    scopes: ClassVar = {"GET": ("publish", "account", "read"), "PATCH": ("publish",)}

    class ChangeVersion(serializers.Serializer):
        changelog = serializers.CharField(max_length=MAX_CHANGELOG, allow_blank=True)

    @extend_schema(operation_id="get_version", responses=OwnVersion)
    def get(self, request: Request, version_id: UUID) -> Response:
        """A version of one's own: its state, how much has been uploaded, what verification found."""
        return Response(self.show(OwnVersion, self.owned_version(version_id)))

    @extend_schema(operation_id="change_version", request=ChangeVersion, responses=OwnVersion)
    def patch(self, request: Request, version_id: UUID) -> Response:
        """Say what is new in a version that was never on sale. 409 `published`: its changelog stands."""
        version, wanted = self.owned_version(version_id), self.parse(self.ChangeVersion)
        publishing.change_changelog(version=version, text=wanted["changelog"], actor=self.actor)
        return Response(self.show(OwnVersion, version))


class PackageView(ControlView):
    """The resumable upload."""

    parser_classes: ClassVar = [RawParser]
    scopes: ClassVar = {"GET": ("publish",), "PUT": ("publish",)}
    max_body_size = MAX_CHUNK_SIZE
    http_method_names: ClassVar = ["head", "put", "options"]

    @extend_schema(operation_id="get_upload_offset", responses={200: None})
    def head(self, request: Request, version_id: UUID) -> Response:
        """`Upload-Offset`: how many bytes have arrived. `Upload-Length`: how many were announced."""
        version = self.owned_version(version_id)
        headers = {
            "Upload-Offset": str(publishing.upload_offset(version=version)),
            "Upload-Length": str(version.package_size),
        }
        return Response(status=200, headers=headers)

    @extend_schema(
        operation_id="upload_chunk",
        parameters=[UPLOAD_OFFSET],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={204: None},
    )
    def put(self, request: Request, version_id: UUID) -> Response:
        """Append up to 8 MiB at `Upload-Offset`. 409 with the right `Upload-Offset` if the upload is elsewhere."""
        version = self.owned_version(version_id)
        offset, length = chunk_of(request)
        reached = publishing.append_package_chunk(version=version, offset=offset, stream=request.data, length=length)
        return Response(status=204, headers={"Upload-Offset": str(reached)})


def chunk_of(request: Request) -> tuple[int, int]:
    """Return where a chunk starts and its length, in bytes. Raises InvalidInput, and Refusal 411 without a length."""
    offset = request.headers.get("Upload-Offset", "")
    if not (offset.isascii() and offset.isdigit() and len(offset) <= 12):
        raise InvalidInput("must be where this chunk starts, in bytes", field="Upload-Offset")
    length = int(request.META.get("CONTENT_LENGTH") or 0)
    if length == 0:
        raise Refusal(
            "send Content-Length and at least one byte", code="length_required", status=411, field="Content-Length"
        )
    return int(offset), length


class CompleteVersionView(ControlView):
    """The end of the upload."""

    scopes: ClassVar = {"POST": ("publish",)}

    class CompleteVersion(serializers.Serializer):
        digest = serializers.RegexField(DIGEST_PATTERN, help_text="of the package, in hex")
        wrapped_data_key = Base64UrlField(max_length=4000, help_text="wrapped to the intake key for this very package")

    @extend_schema(operation_id="complete_version", request=CompleteVersion, responses=OwnVersion)
    def post(self, request: Request, version_id: UUID) -> Response:
        """Check signature, digest and header, take the data key, and have a replica verify the adapter."""
        version = self.owned_version(version_id)
        wanted = self.parse(self.CompleteVersion)
        version = publishing.complete_version(
            version=version, digest=wanted["digest"], wrapped_data_key=wanted["wrapped_data_key"]
        )
        return Response(self.show(OwnVersion, version))


class PublishVersionView(ControlView):
    """Offer it for sale."""

    scopes: ClassVar = {"POST": ("publish",)}
    fresh = frozenset({"POST"})

    @extend_schema(operation_id="publish_version", request=None, responses=OwnVersion)
    def post(self, request: Request, version_id: UUID) -> Response:
        """Publish a verified version of a model that has a price.

        A public model may have to wait for a person: the state is then `in_review`, and `review` says why and until
        when. 409 `refused_by_review`: a copy of another organization's weights, or refused before.
        """
        version = publishing.publish_version(version=self.owned_version(version_id), by=self.person)
        return Response(self.show(OwnVersion, version))


class RetireVersionView(ControlView):
    """Take it off sale."""

    scopes: ClassVar = {"POST": ("publish",)}
    fresh = frozenset({"POST"})

    @extend_schema(operation_id="retire_version", request=None, responses=OwnVersion)
    def post(self, request: Request, version_id: UUID) -> Response:
        """Retire a version: no new predictions, replicas drop it. It cannot be published again.

        409 `in_use`: it is on sale in public and customers called it in the last 30 days, so announce its end first.
        """
        return Response(
            self.show(OwnVersion, publishing.retire_version(version=self.owned_version(version_id), by=self.person))
        )


class RevokeVersionView(ControlView):
    """The kill switch."""

    scopes: ClassVar = {"POST": ("publish",)}
    fresh = frozenset({"POST"})

    class RevokeVersion(serializers.Serializer):
        reason = serializers.CharField(max_length=500)

    @extend_schema(operation_id="revoke_version", request=RevokeVersion, responses=OwnVersion)
    def post(self, request: Request, version_id: UUID) -> Response:
        """Revoke a version: replicas refuse it, stop what runs, zero it and confirm (see its holders)."""
        version = self.owned_version(version_id)
        reason = self.parse(self.RevokeVersion)["reason"]
        return Response(
            self.show(OwnVersion, publishing.revoke_version(version=version, reason=reason, by=self.person))
        )
