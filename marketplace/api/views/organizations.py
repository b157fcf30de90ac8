"""The caller's organization: names, logo; and the ownership of it."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import transaction
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.errors import NotFound
from marketplace.accounts.models import Organization
from marketplace.api.errors import not_found
from marketplace.api.fields import SlugField
from marketplace.api.parsers import RawParser
from marketplace.api.views.base import ControlView
from marketplace.teams import members, organizations, pictures, selectors
from marketplace.teams.addresses import logo_path


class OwnOrganization(serializers.Serializer):  # shows an Organization
    id = serializers.UUIDField()
    slug = serializers.CharField(help_text="the name in addresses and in the names of models")
    name = serializers.CharField(help_text="the name that people read")
    logo_url = serializers.SerializerMethodField()
    former_slugs = serializers.SerializerMethodField(help_text="names that still lead here")
    created_at = serializers.DateTimeField()

    def get_logo_url(self, row: Organization) -> str | None:
        """Return the address of the logo."""
        return f"{settings.PUBLIC_URL}{logo_path(row.logo)}" if row.logo else None

    def get_former_slugs(self, row: Organization) -> list[str]:
        """Return the names that the organization gave up."""
        return [former.slug for former in selectors.former_names_of(organization=row)]


class OrganizationView(ControlView):
    """The organization's names."""

    scopes: ClassVar = {"GET": ("account", "read"), "PATCH": ("account",)}
    fresh: ClassVar = frozenset({"PATCH"})

    class ChangeOrganization(serializers.Serializer):
        slug = SlugField(required=False, help_text="the former name leads here for two years")
        name = serializers.CharField(max_length=100, required=False)

    @extend_schema(operation_id="get_organization", responses=OwnOrganization)
    def get(self, request: Request, org: str) -> Response:
        """The organization, by its name or a former one."""
        return Response(self.show(OwnOrganization, self.own_organization(org)))

    @extend_schema(operation_id="change_organization", request=ChangeOrganization, responses=OwnOrganization)
    def patch(self, request: Request, org: str) -> Response:
        """Change its names, three times a year its slug. Owners and admins, in person: a key cannot do this."""
        organization, wanted = self.own_organization(org), self.parse(self.ChangeOrganization)
        with transaction.atomic():
            if "name" in wanted:
                organizations.change_name(organization=organization, by=self.member, name=wanted["name"])
            if "slug" in wanted:
                organizations.rename(organization=organization, by=self.member, slug=wanted["slug"])
        return Response(self.show(OwnOrganization, organization))


class LogoView(ControlView):
    """The organization's logo."""

    scopes: ClassVar = {"PUT": ("account",), "DELETE": ("account",)}
    parser_classes: ClassVar = [RawParser]
    max_body_size = pictures.MAX_FILE_BYTES

    @extend_schema(
        operation_id="put_logo", request={"application/octet-stream": OpenApiTypes.BINARY}, responses=OwnOrganization
    )
    def put(self, request: Request, org: str) -> Response:
        """Show a picture: the body is a PNG, JPEG or WebP file of at most 1 MiB. It is drawn anew as 256 × 256 WebP."""
        organization = self.own_organization(org)
        content = request.data.read(pictures.MAX_FILE_BYTES + 1) if hasattr(request.data, "read") else b""
        organizations.set_logo(organization=organization, by=self.member, content=content)
        return Response(self.show(OwnOrganization, organization))

    @extend_schema(operation_id="delete_logo", responses={204: None})
    def delete(self, request: Request, org: str) -> Response:
        """Show no picture any more."""
        organizations.remove_logo(organization=self.own_organization(org), by=self.member)
        return Response(status=204)


class Offer(serializers.Serializer):  # shows a Transfer
    offered_by = serializers.EmailField(source="offered_by.email")
    offered_to = serializers.EmailField(source="offered_to.email")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()


class TransferView(ControlView):
    """The offer of the ownership to another member."""

    scopes: ClassVar = {"GET": ("account", "read"), "POST": ("account",), "DELETE": ("account", "read")}
    fresh: ClassVar = frozenset({"POST"})

    class OfferOwnership(serializers.Serializer):
        user_id = serializers.UUIDField(help_text="a member, from `members`")

    @extend_schema(operation_id="get_transfer", responses=Offer)
    def get(self, request: Request, org: str) -> Response:
        """The open offer; 404 without one."""
        transfer = members.open_transfer(organization=self.own_organization(org))
        if transfer is None:
            raise not_found("open offer of ownership")
        return Response(self.show(Offer, transfer))

    @extend_schema(operation_id="offer_ownership", request=OfferOwnership, responses={201: Offer})
    def post(self, request: Request, org: str) -> Response:
        """Offer a member the ownership: once they accept, they are owner and you are admin. Owners only."""
        organization, wanted = self.own_organization(org), self.parse(self.OfferOwnership)
        membership = selectors.membership_by_id(organization=organization, user_id=wanted["user_id"])
        if membership is None:
            raise NotFound("there is no such member", field="user_id")
        transfer = members.offer_ownership(organization=organization, by=self.member, user=membership.user)
        return Response(self.show(Offer, transfer), status=201)

    @extend_schema(operation_id="end_transfer", responses={204: None})
    def delete(self, request: Request, org: str) -> Response:
        """Take the offer back as an owner, or decline it as the one to whom it is made."""
        members.end_transfer(organization=self.own_organization(org), user=self.member)
        return Response(status=204)


class AcceptTransferView(ControlView):
    """The answer to an offer of the ownership."""

    scopes: ClassVar = {"POST": ("account", "read")}
    fresh: ClassVar = frozenset({"POST"})

    @extend_schema(operation_id="accept_ownership", request=None, responses=OwnOrganization)
    def post(self, request: Request, org: str) -> Response:
        """Become owner; whoever offered it becomes admin."""
        organization = self.own_organization(org)
        members.accept_ownership(organization=organization, user=self.member)
        return Response(self.show(OwnOrganization, organization))


class LeaveView(ControlView):
    """The way out."""

    scopes: ClassVar = {"POST": ("account", "read")}
    fresh: ClassVar = frozenset({"POST"})

    @extend_schema(operation_id="leave_organization", request=None, responses={204: None})
    def post(self, request: Request, org: str) -> Response:
        """Leave the organization. Your keys stay in it; its last owner cannot leave."""
        members.leave(organization=self.own_organization(org), user=self.member)
        return Response(status=204)
