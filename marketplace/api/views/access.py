"""Admission to a model: a customer accepts its licence and asks for access, its creator answers."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.access import selectors, services
from marketplace.access.models import MAX_REASON
from marketplace.access.policies import ANSWERS
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model


class AdmissionView(ControlView):
    """The conditions between one's own organization and its first call of a model."""

    scopes: ClassVar = {"GET": ("predict", "publish", "account", "read")}

    class OwnAdmission(serializers.Serializer):
        licence_accepted = serializers.BooleanField(help_text="true, too, where none has to be accepted")
        access_granted = serializers.BooleanField(help_text="true, too, where nobody has to ask")

    @extend_schema(operation_id="get_admission", responses=OwnAdmission)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Whether calls of your organization go through: both must be true."""
        model = self.visible_model(org, slug)
        admission = selectors.admission_of(model=model, organization=self.organization)
        return Response(self.show(self.OwnAdmission, admission))

    def visible_model(self, org: str, slug: str) -> Model:
        """Return a model that the caller's organization may see; any other is not found."""
        model = catalog.visible_model(org_slug=org, slug=slug, viewer=self.organization)
        if model is None:
            raise not_found("model")
        return model


class LicenceAcceptanceView(AdmissionView):
    """The licence of a model, accepted in an organization's name."""

    scopes: ClassVar = {"GET": ("predict", "publish", "account", "read"), "POST": ("predict",)}

    class AcceptLicence(serializers.Serializer):
        digest = serializers.RegexField(r"^[0-9a-f]{64}$", help_text="`licence.digest` of the listing that you read")

    class Acceptance(serializers.Serializer):  # shows a LicenceAcceptance
        licence = serializers.CharField(source="terms.licence")
        text = serializers.CharField(source="terms.text", help_text="the creator's own; empty for a known licence")
        digest = serializers.CharField(source="terms_id")
        accepted_at = serializers.DateTimeField()

    @extend_schema(operation_id="get_licence_acceptance", responses=Acceptance)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The acceptance of the licence as it is now. 404: your organization has not accepted it."""
        found = selectors.acceptance_of(model=self.visible_model(org, slug), organization=self.organization)
        if found is None:
            raise not_found("acceptance")
        return Response(self.show(self.Acceptance, found))

    @extend_schema(operation_id="accept_licence", request=AcceptLicence, responses={201: Acceptance})
    def post(self, request: Request, org: str, slug: str) -> Response:
        """Accept the licence for your organization. 409 `licence_changed`: it is another one than you read."""
        model = self.visible_model(org, slug)
        digest = self.parse(self.AcceptLicence)["digest"]
        row = services.accept_licence(model=model, organization=self.organization, digest=digest, actor=self.actor)
        return Response(self.show(self.Acceptance, row), status=201)


class OwnRequest(serializers.Serializer):  # shows an AccessRequest to those who asked
    id = serializers.UUIDField()
    state = serializers.CharField(help_text="asked, granted, declined or revoked")
    reason = serializers.CharField()
    answer = serializers.CharField(help_text="the creator's words, or empty")
    asked_at = serializers.DateTimeField()
    answered_at = serializers.DateTimeField(allow_null=True)


class SeenRequest(OwnRequest):  # shows one to the creator
    model = serializers.CharField(source="model.full_name")
    organization = serializers.CharField(source="organization.slug")
    organization_name = serializers.CharField(source="organization.name")


class AccessRequestView(AdmissionView):
    """One's own request to be let in to a gated model."""

    scopes: ClassVar = {"GET": ("predict", "publish", "account", "read"), "POST": ("predict",)}

    class AskForAccess(serializers.Serializer):
        reason = serializers.CharField(max_length=MAX_REASON, help_text="the creator reads it, with your name")

    @extend_schema(operation_id="get_access_request", responses=OwnRequest)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The request of your organization and its answer. 404: it has not asked."""
        found = selectors.request_of(model=self.visible_model(org, slug), organization=self.organization)
        if found is None:
            raise not_found("request")
        return Response(self.show(OwnRequest, found))

    @extend_schema(operation_id="ask_for_access", request=AskForAccess, responses={201: OwnRequest})
    def post(self, request: Request, org: str, slug: str) -> Response:
        """Ask the creator to be let in. After a refusal, your organization may ask again a day later."""
        model = self.visible_model(org, slug)
        reason = self.parse(self.AskForAccess)["reason"]
        row = services.ask_for_access(model=model, organization=self.organization, reason=reason, actor=self.actor)
        return Response(self.show(OwnRequest, row), status=201)


class AccessRequestsView(ControlView):
    """The requests for one's own model."""

    scopes: ClassVar = {"GET": ("publish",)}

    @extend_schema(operation_id="list_access_requests", responses=SeenRequest(many=True))
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Every organization that asked for access to a model of yours, the last to ask first."""
        rows = selectors.requests_for(model=self.owned_model(org, slug))
        return self.page(rows, SeenRequest, ordering=("-asked_at", "-id"))


class AnswerAccessRequestView(ControlView):
    """The answer to one of them."""

    scopes: ClassVar = {"POST": ("publish",)}

    class AnswerRequest(serializers.Serializer):
        answer = serializers.ChoiceField([*ANSWERS])
        text = serializers.CharField(
            max_length=MAX_REASON, allow_blank=True, default="", help_text="the customer reads it"
        )

    @extend_schema(operation_id="answer_access_request", request=AnswerRequest, responses=SeenRequest)
    def post(self, request: Request, request_id: UUID) -> Response:
        """Grant, decline, or revoke what was granted: calls follow within two seconds."""
        found = selectors.owned_request(organization=self.organization, request_id=request_id)
        if found is None:
            raise not_found("request")
        wanted = self.parse(self.AnswerRequest)
        return Response(self.show(SeenRequest, services.answer_request(request=found, actor=self.actor, **wanted)))
