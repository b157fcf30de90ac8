"""API keys and signing keys of the caller's organization."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.limited_keys import Limits, create_limited_key
from marketplace.accounts import policies, selectors, services
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.models import ApiKey
from marketplace.api.errors import not_found
from marketplace.api.fields import Base64UrlField
from marketplace.api.serializers import CreatorSigningKey, GuardsField, Key, NewKey
from marketplace.api.views.base import ControlView
from marketplace.vault import selectors as vault_selectors
from marketplace.vault import services as vault_services

MAX_LIMIT = 10**15  # nano-dollars: a million dollars


class KeyView(ControlView):
    """Base of the operations on one key."""

    def own_key(self, key_id: UUID) -> ApiKey:
        """Return the key, if it is the organization's; any other is not found."""
        key = selectors.api_key_of(organization=self.organization, key_id=key_id)
        if key is None:
            raise not_found("key")
        return key

    def require_grant(self, scopes: list[str]) -> None:
        """Refuse a caller who hands out, or renews, more scopes than they may (`policies.may_grant`)."""
        if not policies.may_grant(self.caller.scopes, scopes):
            raise NotAllowed(
                "a key can only be given scopes that you may hand out", code="scope_missing", field="scopes"
            )


class KeysView(KeyView):
    """List and create."""

    scopes: ClassVar = {"GET": ("account",), "POST": ("account",)}

    class CreateKey(serializers.Serializer):
        name = serializers.CharField(max_length=100)
        scopes = serializers.ListField(child=serializers.ChoiceField(ApiKey.Scope.values), min_length=1, max_length=10)
        expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
        monthly_limit_nano_usd = serializers.IntegerField(
            min_value=0, max_value=MAX_LIMIT, allow_null=True, default=None
        )
        total_limit_nano_usd = serializers.IntegerField(min_value=0, max_value=MAX_LIMIT, allow_null=True, default=None)
        guards = GuardsField(default=dict, help_text="what is done about personal data in its requests")

    @extend_schema(operation_id="list_keys", responses=Key(many=True))
    def get(self, request: Request) -> Response:
        """The organization's keys, newest first. Never the keys themselves."""
        keys = selectors.api_keys_of(organization=self.organization)
        return self.page(keys, Key)

    @extend_schema(operation_id="create_key", request=CreateKey, responses={201: NewKey})
    def post(self, request: Request) -> Response:
        """Create a key. It is in the answer, once."""
        wanted = self.parse(self.CreateKey)
        self.require_grant(wanted["scopes"])
        key, text = create_limited_key(
            organization=self.organization,
            name=wanted["name"],
            scopes=wanted["scopes"],
            created_by=self.caller.user,
            expires_at=wanted["expires_at"],
            limits=Limits(
                monthly_nano_usd=wanted["monthly_limit_nano_usd"], total_nano_usd=wanted["total_limit_nano_usd"]
            ),
            guards=wanted["guards"],
        )
        return Response(self.show(NewKey, key, text=text), status=201)


class DeleteKeyView(KeyView):
    """Revoke one key."""

    @extend_schema(operation_id="revoke_key", responses={204: None})
    def delete(self, request: Request, key_id: UUID) -> Response:
        """Revoke a key: it stops working within five seconds, everywhere. Its row stays for the records.

        Any key may revoke itself, so that a program can log out; another one needs the scope `account`.
        """
        key = self.own_key(key_id)
        is_itself = isinstance(request.auth, ApiKey) and request.auth.pk == key.pk
        if not is_itself and ApiKey.Scope.ACCOUNT not in self.caller.scopes:
            raise NotAllowed("this needs the scope account", code="scope_missing")
        services.revoke_api_key(key=key)
        return Response(status=204)


class RotateKeyView(KeyView):
    """Replace one key."""

    scopes: ClassVar = {"POST": ("account",)}

    @extend_schema(operation_id="rotate_key", request=None, responses={201: NewKey})
    def post(self, request: Request, key_id: UUID) -> Response:
        """Create a key with the same name and scopes; the old one works for 24 hours more. Both share one budget."""
        key = self.own_key(key_id)
        self.require_grant(key.scopes)
        new, text = services.rotate_api_key(key=key, created_by=self.caller.user)
        return Response(self.show(NewKey, new, text=text), status=201)


class SigningKeysView(ControlView):
    """The public keys that the organization's packages are signed with."""

    scopes: ClassVar = {"GET": ("publish", "account", "read"), "POST": ("publish",)}

    class RegisterSigningKey(serializers.Serializer):
        public_key = Base64UrlField(max_length=43, help_text="32 bytes of an Ed25519 public key")

    @extend_schema(operation_id="list_signing_keys", responses=CreatorSigningKey(many=True))
    def get(self, request: Request, org: str) -> Response:
        """The organization's signing keys, newest first."""
        self.own_organization(org)
        keys = vault_selectors.signing_keys_of(organization=self.organization)
        return self.page(keys, CreatorSigningKey)

    @extend_schema(operation_id="register_signing_key", request=RegisterSigningKey, responses={201: CreatorSigningKey})
    def post(self, request: Request, org: str) -> Response:
        """Register a public key; registering it again gives the same row."""
        self.own_organization(org)
        wanted = self.parse(self.RegisterSigningKey)
        key = vault_services.register_signing_key(organization=self.organization, public_key=wanted["public_key"])
        return Response(self.show(CreatorSigningKey, key), status=201)
