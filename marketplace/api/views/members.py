"""Members and invites of the caller's organization. People manage them; keys with `account` read them."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts import selectors as accounts
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.models import Membership, Organization, User
from marketplace.api.errors import not_found
from marketplace.api.serializers import Organizations
from marketplace.api.views.base import ControlView
from marketplace.teams import invites, members, selectors

Role = Membership.Role


class Member(serializers.Serializer):  # shows a Membership
    user_id = serializers.UUIDField()
    email = serializers.EmailField(source="user.email")
    role = serializers.ChoiceField(Role.choices)
    second_factor = serializers.SerializerMethodField(help_text="whether their sign-in asks for one")
    joined_at = serializers.DateTimeField(source="created_at")

    def get_second_factor(self, row: Membership) -> bool:
        """Look the person up among those of the page."""
        return row.user_id in self.context["secured"]


class MembersView(ControlView):
    """Everybody in the organization."""

    scopes: ClassVar = {"GET": ("account", "read")}

    @extend_schema(operation_id="list_members", responses=Member(many=True))
    def get(self, request: Request, org: str) -> Response:
        """The members, the oldest first. A key needs `account` for it."""
        organization = self.own_organization(org)
        if self.caller.key is not None and "account" not in self.caller.scopes:
            raise NotAllowed("this needs the scope account", code="scope_missing")
        secured = selectors.with_second_factor(organization=organization)
        return self.page(
            accounts.members_of(organization=organization), Member, ordering=("created_at", "id"), secured=secured
        )


class MemberView(ControlView):
    """One member."""

    scopes: ClassVar = {"PATCH": ("account",), "DELETE": ("account",)}
    fresh: ClassVar = frozenset({"PATCH", "DELETE"})

    class ChangeMember(serializers.Serializer):
        role = serializers.ChoiceField(Role.choices)

    @extend_schema(operation_id="change_member", request=ChangeMember, responses=Member)
    def patch(self, request: Request, org: str, user_id: UUID) -> Response:
        """Give the member another role. Owners and admins; only owners make and unmake owners."""
        organization = self.own_organization(org)
        wanted, user = self.parse(self.ChangeMember), self._user(organization, user_id)
        changed = members.change_role(organization=organization, by=self.member, user=user, role=wanted["role"])
        secured = selectors.with_second_factor(organization=organization)
        return Response(self.show(Member, changed, secured=secured))

    @extend_schema(operation_id="remove_member", responses={204: None})
    def delete(self, request: Request, org: str, user_id: UUID) -> Response:
        """Remove the member at once. Keys that they made stay the organization's: revoke them under `keys`."""
        organization = self.own_organization(org)
        members.remove(organization=organization, by=self.member, user=self._user(organization, user_id))
        return Response(status=204)

    def _user(self, organization: Organization, user_id: UUID) -> User:
        found = selectors.membership_by_id(organization=organization, user_id=user_id)
        if found is None:
            raise not_found("member")
        return found.user


class InviteFields(serializers.Serializer):  # shows an Invite
    id = serializers.UUIDField()
    email = serializers.EmailField()
    role = serializers.ChoiceField(Role.choices)
    invited_by = serializers.EmailField(source="invited_by.email", allow_null=True, default=None)
    created_at = serializers.DateTimeField()
    sent_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()


class InvitesView(ControlView):
    """Invites without an answer."""

    scopes: ClassVar = {"GET": ("account",), "POST": ("account",)}
    fresh: ClassVar = frozenset({"POST"})

    class MakeInvite(serializers.Serializer):
        email = serializers.EmailField(max_length=254)
        role = serializers.ChoiceField(Role.choices)

    @extend_schema(operation_id="list_invites", responses=InviteFields(many=True))
    def get(self, request: Request, org: str) -> Response:
        """The invites that nobody has answered, newest first, those that are too old as well."""
        return self.page(invites.unanswered(organization=self.own_organization(org)), InviteFields)

    @extend_schema(operation_id="invite_member", request=MakeInvite, responses={201: InviteFields})
    def post(self, request: Request, org: str) -> Response:
        """Mail a link by which the address joins, good for seven days. Owners and admins, in person."""
        organization, wanted = self.own_organization(org), self.parse(self.MakeInvite)
        made = invites.invite(organization=organization, by=self.member, email=wanted["email"], role=wanted["role"])
        return Response(self.show(InviteFields, made), status=201)


class InviteView(ControlView):
    """One invite."""

    scopes: ClassVar = {"DELETE": ("account",)}

    @extend_schema(operation_id="revoke_invite", responses={204: None})
    def delete(self, request: Request, org: str, invite_id: UUID) -> Response:
        """Take the invite back: its link leads nowhere."""
        invites.revoke(organization=self.own_organization(org), by=self.member, invite_id=invite_id)
        return Response(status=204)


class ResendInviteView(ControlView):
    """Another mail."""

    scopes: ClassVar = {"POST": ("account",)}
    fresh: ClassVar = frozenset({"POST"})

    @extend_schema(operation_id="resend_invite", request=None, responses=InviteFields)
    def post(self, request: Request, org: str, invite_id: UUID) -> Response:
        """Mail a new link, good for seven days; the old one ends."""
        row = invites.resend(organization=self.own_organization(org), by=self.member, invite_id=invite_id)
        return Response(self.show(InviteFields, row))


class AcceptInviteView(ControlView):
    """The way in."""

    class AcceptInvite(serializers.Serializer):
        token = serializers.CharField(max_length=200, help_text="the last part of the link")

    @extend_schema(operation_id="accept_invite", request=AcceptInvite, responses=Organizations)
    def post(self, request: Request) -> Response:
        """Join an organization by the link that was mailed to the address of the signed-in user."""
        membership = invites.accept(token=self.parse(self.AcceptInvite)["token"], user=self.member)
        return Response(self.show(Organizations, membership))
