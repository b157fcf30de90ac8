"""Tokens for the CLI, the caller, organizations."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts import device_login, policies, second_factor, selectors, services, sign_in
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import InvalidInput, NotAllowed, Refusal
from marketplace.accounts.models import ApiKey, Membership, Organization, User
from marketplace.api.errors import not_found
from marketplace.api.fields import SlugField
from marketplace.api.key_shapes import Key, NewKey
from marketplace.api.serializers import Organizations
from marketplace.api.throttling import SignUpThrottle, TokenThrottle
from marketplace.api.views.base import ControlView

SCOPES = ApiKey.Scope.values


class CreateTokenView(ControlView):
    """The token of a confirmed login (`intarsia login`), or e-mail and password, for an API key."""

    authentication_classes: ClassVar[
        list[type[BaseAuthentication]]
    ] = []  # neither a session nor an old key has a say in it
    throttle_classes: ClassVar = [TokenThrottle]
    public = frozenset({"POST"})

    class CreateToken(serializers.Serializer):
        email = serializers.EmailField(max_length=254)
        password = serializers.CharField(max_length=1000, trim_whitespace=False)
        scopes = serializers.ListField(
            child=serializers.ChoiceField(SCOPES), min_length=1, max_length=10, default=["publish", "account"]
        )
        organization = SlugField(required=False)
        name = serializers.CharField(max_length=100, default="intarsia command line")
        expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
        code = serializers.CharField(
            max_length=20,
            default="",
            help_text="what the authenticator app shows, or a recovery code: for people with a second factor",
        )

    class TradeToken(serializers.Serializer):
        device_token = serializers.CharField(
            max_length=200,
            help_text="what `POST /oauth/token` gave after a person confirmed; good once, for two minutes. The person "
            "chose organization and scopes",
        )

    @extend_schema(
        operation_id="create_token",
        request=PolymorphicProxySerializer(
            component_name="NewToken", serializers=[CreateToken, TradeToken], resource_type_field_name=None
        ),
        responses={201: NewKey},
        auth=[],
    )
    def post(self, request: Request) -> Response:
        """Create an API key with the token of a confirmed login, or with e-mail, password and second factor's code.

        The key is in the answer, once.
        """
        if isinstance(request.data, dict) and "device_token" in request.data:
            key, text = device_login.trade(self.parse(self.TradeToken)["device_token"])
            return Response(self.show(NewKey, key, text=text), status=201)
        wanted = self.parse(self.CreateToken)
        place = sign_in.place_of(request, wanted["email"])
        if not sign_in.is_allowed(place):
            raise Refusal(
                "too many wrong passwords for this e-mail; wait 15 minutes, or set a new password by mail",
                code="too_many_failures",
                status=429,
            )
        user = services.authenticate_user(email=wanted["email"], password=wanted["password"])
        sign_in.forget(place)
        if second_factor.is_enrolled(user=user) and not second_factor.has_second_factor(user=user, code=wanted["code"]):
            raise NotAllowed(
                "send the code that your authenticator app shows, or a recovery code, in `code`",
                code="second_factor_required",
                field="code",
            )
        membership = _chosen_membership(user, wanted.get("organization"))
        if second_factor.is_missing(organization=membership.organization, user=user):
            raise second_factor.SecondFactorMissing
        if not policies.may_grant(policies.scopes_of_role(membership.role), wanted["scopes"]):
            raise NotAllowed(
                f"the role {membership.role} does not carry these scopes",
                code="scope_missing",
                field="scopes",
            )
        key, text = services.create_api_key(
            organization=membership.organization,
            name=wanted["name"],
            scopes=wanted["scopes"],
            created_by=user,
            expires_at=wanted["expires_at"],
            actor=Actor(user=user),
        )
        return Response(self.show(NewKey, key, text=text), status=201)


class MeView(ControlView):
    """The caller."""

    class Me(serializers.Serializer):
        email = serializers.EmailField(allow_null=True, help_text="null for a key whose maker has left")
        is_staff = serializers.BooleanField()
        organization = Organizations(allow_null=True, help_text="the one this request acts for")
        organizations = Organizations(many=True)
        scopes = serializers.ListField(child=serializers.CharField())
        key = Key(allow_null=True)

    @extend_schema(operation_id="get_me", responses=Me)
    def get(self, request: Request) -> Response:
        """The caller: which user or key, for which organization, with which scopes."""
        caller = self.caller
        memberships = list(selectors.memberships_of(user=caller.user)) if caller.user else []
        if caller.key is not None:
            # A key speaks for one organization; its maker's other organizations stay out of the answer.
            memberships = [one for one in memberships if one.organization_id == caller.key.organization_id]
        acting: Membership | dict[str, Any] | None = None
        if caller.organization is not None:
            own = [one for one in memberships if one.organization_id == caller.organization.id]
            # A key outlives its maker's membership: it then acts for the organization without a role.
            no_role = {"organization_id": caller.organization.id, "organization": caller.organization, "role": None}
            acting = own[0] if own else no_role
        me = {
            "email": caller.user.email if caller.user else None,
            "is_staff": caller.is_operator,
            "organization": acting,
            "organizations": memberships,
            "scopes": sorted(caller.scopes),
            "key": caller.key,
        }
        return Response(self.show(self.Me, me))


class OrganizationsView(ControlView):
    """Organizations of the caller."""

    throttle_classes: ClassVar = [SignUpThrottle]

    class CreateOrganization(serializers.Serializer):
        slug = SlugField()
        name = serializers.CharField(max_length=100)
        referred_by = SlugField(required=False, help_text="the organization that brought this one")

    @extend_schema(operation_id="create_organization", request=CreateOrganization, responses={201: Organizations})
    def post(self, request: Request) -> Response:
        """Create an organization owned by the signed-in user, with its wallet. A key cannot do this."""
        if self.caller.user is None or self.caller.key is not None:
            raise NotAllowed("sign in on the web site to create an organization", code="session_required")
        wanted = self.parse(self.CreateOrganization)
        referrer = None
        if "referred_by" in wanted:
            referrer = selectors.organization_named(wanted["referred_by"])
            if referrer is None:
                raise InvalidInput("there is no such organization", field="referred_by")
        organization = services.create_organization(
            owner=self.caller.user, slug=wanted["slug"], name=wanted["name"], referred_by=referrer
        )
        own = Membership(organization=organization, role=Membership.Role.OWNER)
        return Response(self.show(Organizations, own), status=201)


class SecondFactorView(ControlView):
    """The second factor that an organization requires of its members."""

    fresh = frozenset({"PUT"})

    class SecondFactor(serializers.Serializer):
        required = serializers.BooleanField(
            source="requires_second_factor", help_text="members without one can do nothing but set one up; keys go on"
        )

    @extend_schema(operation_id="get_second_factor", responses=SecondFactor)
    def get(self, request: Request, org: str) -> Response:
        """Return whether the organization requires a second factor of its members."""
        return Response(self.show(self.SecondFactor, self._own(org)))

    @extend_schema(operation_id="require_second_factor", request=SecondFactor, responses=SecondFactor)
    def put(self, request: Request, org: str) -> Response:
        """Require a second factor of every member, or no longer. Owners and admins, in person, who have one."""
        own = self._own(org)
        if self.caller.key is not None or self.caller.user is None:
            raise NotAllowed("sign in on the web site to decide this", code="session_required")
        membership = selectors.membership_in(user=self.caller.user, slug=org)
        if membership is None or membership.role not in policies.MANAGERS:
            raise NotAllowed("only an owner or admin may decide this", code="forbidden")
        organization = second_factor.set_requirement(
            organization=own,
            required=self.parse(self.SecondFactor)["requires_second_factor"],
            actor=self.actor,
        )
        return Response(self.show(self.SecondFactor, organization))

    def _own(self, org: str) -> Organization:
        if org != self.organization.slug:
            raise not_found("organization of yours")
        return self.organization


def _chosen_membership(user: User, slug: str | None) -> Membership:
    if slug:
        membership = selectors.membership_in(user=user, slug=slug)
        if membership is None:
            raise not_found("organization of yours")
        return membership
    memberships = list(selectors.memberships_of(user=user)[:20])
    if len(memberships) == 1:
        return memberships[0]
    names = ", ".join(one.organization.slug for one in memberships) or "none"
    raise InvalidInput(f"name the organization; yours are: {names}", code="organization_required", field="organization")
