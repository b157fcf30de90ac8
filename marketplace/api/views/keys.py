"""API keys and signing keys of the caller's organization."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.limited_keys import Limits, create_limited_key, rotate_limited_key
from marketplace.accounts import policies, selectors, services
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.key_services import LONGEST_OVERLAP
from marketplace.accounts.models import ApiKey, User
from marketplace.alerts.keys import revoke_key
from marketplace.api.errors import not_found
from marketplace.api.fields import Base64UrlField
from marketplace.api.key_shapes import GuardsField, Key, ModelsField, NetworksField, NewKey
from marketplace.api.serializers import CreatorSigningKey
from marketplace.api.views.base import ControlView
from marketplace.vault import selectors as vault_selectors
from marketplace.vault import services as vault_services

MANAGERS = ("account", "predict", "publish")
MAX_LIMIT = 10**15  # nano-dollars: a million dollars


class KeyView(ControlView):
    """Base of the operations on keys: with `account` on all, a signed-in developer on their own."""

    @property
    def only_of(self) -> User | None:
        """Return the person whose keys alone the caller manages; None: all of the organization.

        Raises NotAllowed for a key without the scope `account`, which could make itself a stronger one.
        """
        if policies.manages_all_keys(self.caller.scopes):
            return None
        if self.caller.key is not None or self.caller.user is None:
            raise NotAllowed("this needs the scope account", code="scope_missing")
        return self.caller.user

    def own_key(self, key_id: UUID) -> ApiKey:
        """Return the key, if it is the caller's to manage; any other is not found."""
        key = selectors.api_key_of(organization=self.organization, key_id=key_id, created_by=self.only_of)
        if key is None:
            raise not_found("key")
        return key

    def require_grant(self, scopes: list[str]) -> None:
        """Refuse a caller who hands out, or renews, more scopes than they may (`policies.may_grant`).

        A session must be fresh: a key spends money, and may reach weights and prices.
        """
        if not policies.may_grant(self.caller.scopes, scopes):
            raise NotAllowed(
                "a key can only be given scopes that you may hand out", code="scope_missing", field="scopes"
            )
        self.require_fresh()


class KeysView(KeyView):
    """List and create."""

    scopes: ClassVar = {"GET": MANAGERS, "POST": MANAGERS}

    class CreateKey(serializers.Serializer):
        name = serializers.CharField(max_length=100)
        scopes = serializers.ListField(child=serializers.ChoiceField(ApiKey.Scope.values), min_length=1, max_length=10)
        expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
        monthly_limit_nano_usd = serializers.IntegerField(
            min_value=0, max_value=MAX_LIMIT, allow_null=True, default=None
        )
        total_limit_nano_usd = serializers.IntegerField(min_value=0, max_value=MAX_LIMIT, allow_null=True, default=None)
        guards = GuardsField(default=dict, help_text="what is done about personal data in its requests")
        networks = NetworksField(default=list)
        models = ModelsField(default=list)

    @extend_schema(operation_id="list_keys", responses=Key(many=True))
    def get(self, request: Request) -> Response:
        """The organization's keys, newest first. Never the keys themselves.

        Members without the scope `account` see the keys that they made.
        """
        keys = selectors.managed_keys_of(organization=self.organization, created_by=self.only_of)
        return self.page(keys, Key)

    @extend_schema(operation_id="create_key", request=CreateKey, responses={201: NewKey})
    def post(self, request: Request) -> Response:
        """Create a key. It is in the answer, once."""
        wanted = self.parse(self.CreateKey)
        _ = self.only_of
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
            networks=wanted["networks"],
            models=wanted["models"],
            actor=self.actor,
        )
        return Response(self.show(NewKey, key, text=text), status=201)


class OneKeyView(KeyView):
    """Read, change and revoke one key."""

    scopes: ClassVar = {"GET": MANAGERS, "PATCH": MANAGERS}

    class ChangeKey(serializers.Serializer):
        name = serializers.CharField(max_length=100, required=False)
        networks = NetworksField(required=False)
        models = ModelsField(required=False)

    @extend_schema(operation_id="get_key", responses=Key)
    def get(self, request: Request, key_id: UUID) -> Response:
        """One key."""
        return Response(self.show(Key, self.own_key(key_id)))

    @extend_schema(operation_id="change_key", request=ChangeKey, responses=Key)
    def patch(self, request: Request, key_id: UUID) -> Response:
        """Change name, networks or models of a key and all its rotations. Every process follows within five seconds."""
        key = self.own_key(key_id)
        return Response(
            self.show(Key, services.change_api_key(key=key, actor=self.actor, **self.parse(self.ChangeKey)))
        )

    @extend_schema(operation_id="revoke_key", responses={204: None})
    def delete(self, request: Request, key_id: UUID) -> Response:
        """Revoke a key: it stops working within five seconds, everywhere. Its row stays for the records.

        Any key may revoke itself, so that a program can log out.
        """
        caller = self.caller.key
        is_itself = caller is not None and caller.pk == key_id
        revoke_key(key=caller if caller is not None and is_itself else self.own_key(key_id), actor=self.actor)
        return Response(status=204)


class RotateKeyView(KeyView):
    """Replace one key."""

    scopes: ClassVar = {"POST": MANAGERS}

    class RotateKey(serializers.Serializer):
        overlap_seconds = serializers.IntegerField(
            min_value=0,
            max_value=int(LONGEST_OVERLAP.total_seconds()),
            default=int(services.ROTATION_OVERLAP.total_seconds()),
            help_text="for so long the old key works on; 0: it ends now",
        )

    @extend_schema(operation_id="rotate_key", request=RotateKey, responses={201: NewKey})
    def post(self, request: Request, key_id: UUID) -> Response:
        """Create a key with the same name, scopes and limits; the old one works on for a while."""
        key = self.own_key(key_id)
        overlap = timedelta(seconds=self.parse(self.RotateKey)["overlap_seconds"])
        self.require_grant(key.scopes)
        new, text = rotate_limited_key(key=key, created_by=self.caller.user, overlap=overlap, actor=self.actor)
        return Response(self.show(NewKey, new, text=text), status=201)


class SigningKeysView(ControlView):
    """The public keys that the organization's packages are signed with."""

    scopes: ClassVar = {"GET": ("publish", "account", "read"), "POST": ("publish",)}
    fresh = frozenset({"POST"})

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
