"""The release log, which says who held which key when, and the key that creators wrap theirs to."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.fields import Base64UrlField
from marketplace.api.serializers import IntakeKey
from marketplace.api.views.base import ControlView
from marketplace.vault import selectors as vault_selectors
from marketplace.vault.holders import holders


class CustodyView(ControlView):
    """Every release of the keys of one model."""

    scopes: ClassVar = {"GET": ("publish", "account", "read")}

    class Custody(serializers.Serializer):
        model = serializers.CharField()
        creator_id = serializers.UUIDField()
        vault_public_key = Base64UrlField()
        checkpoint = serializers.DictField(allow_null=True, help_text="signed head of the creator's whole chain")
        releases = serializers.ListField(child=serializers.DictField(), help_text="newest first, at most 200")

    @extend_schema(operation_id="get_custody", responses=Custody)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Every loan of this model's keys: to which replica, when and for what, with hashes and a signed checkpoint."""
        model = self.owned_model(org, slug)
        found = vault_selectors.custody(organization=self.organization, model=model)
        releases = [
            {
                **vault_selectors.entry_of(row).to_json(),
                "entry_hash": Base64UrlField().to_representation(row.entry_hash),
                "replica": row.holder,
                "lease_expires_at": row.lease_ends_at,
                "lease_revoked_at": getattr(getattr(row, "lease", None), "revoked_at", None),
                "lease_confirmed_at": getattr(getattr(row, "lease", None), "confirmed_at", None),
            }
            for row in found.releases
        ]
        custody = {
            "model": model.full_name,
            "creator_id": self.organization.id,
            "vault_public_key": found.vault_public_key,
            "checkpoint": found.checkpoint.to_json() if found.checkpoint else None,
            "releases": releases,
        }
        return Response(self.show(self.Custody, custody))


class CustodyExportView(ControlView):
    """The whole chain of one creator."""

    scopes: ClassVar = {"GET": ("publish", "account", "read")}

    class CustodyExport(serializers.Serializer):
        format = serializers.CharField()
        creator_id = serializers.UUIDField()
        vault_public_key = Base64UrlField()
        checkpoint = serializers.DictField(allow_null=True)
        releases = serializers.ListField(child=serializers.DictField(), help_text="oldest first, complete")

    @extend_schema(operation_id="export_custody", responses=CustodyExport)
    def get(self, request: Request) -> Response:
        """Every release of the organization's keys, as a hash chain that can be checked offline."""
        return Response(vault_selectors.export_chain(organization=self.organization))


class HoldersView(ControlView):
    """The replicas that were lent the key of one version."""

    scopes: ClassVar = {"GET": ("publish", "account", "read")}

    class Holders(serializers.Serializer):
        class Holder(serializers.Serializer):
            replica = serializers.CharField(source="replica.name")
            replica_id = serializers.UUIDField(source="replica.id")
            lease_ends_at = serializers.DateTimeField()
            lease_over = serializers.BooleanField()
            confirmed = serializers.BooleanField(help_text="the replica said that key and weights are gone")

        holders = Holder(many=True)

    @extend_schema(operation_id="get_holders", responses=Holders)
    def get(self, request: Request, version_id: UUID) -> Response:
        """Which replicas may hold the key of a version, until when, and which of them confirmed its withdrawal."""
        found = holders(version=self.owned_version(version_id))
        return Response(self.show(self.Holders, {"holders": found}))


class IntakeKeyView(ControlView):
    """The platform's intake key."""

    public = frozenset({"GET"})

    @extend_schema(operation_id="get_intake_key", responses=IntakeKey, auth=[])
    def get(self, request: Request) -> Response:
        """The public key that data keys are wrapped to. Pin its fingerprint."""
        return Response(self.show(IntakeKey, vault_selectors.public_keys().intake))
