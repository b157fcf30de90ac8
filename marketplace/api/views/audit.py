"""The audit log: entries, a file of them, the seals of its days."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts import audit, audit_seals
from marketplace.accounts.audit_files import FORMATS, file_of
from marketplace.accounts.audit_names import names_of
from marketplace.accounts.models import AuditEntry, AuditSeal
from marketplace.api.pagination import CreatedCursorPagination
from marketplace.api.views.base import ControlView


class EntryFields(serializers.Serializer):  # shows an AuditEntry
    id = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    actor = serializers.SerializerMethodField(help_text="an address, a key's prefix, or the platform's staff")
    user_id = serializers.SerializerMethodField()
    key_id = serializers.UUIDField(source="api_key_id", allow_null=True)
    as_staff = serializers.BooleanField()
    act = serializers.CharField(help_text="noun.verb, such as key.revoked")
    subject = serializers.CharField()
    data = serializers.DictField()

    def get_actor(self, entry: AuditEntry) -> str:
        """Return the name."""
        return str(self.context["names"][entry.pk])

    def get_user_id(self, entry: AuditEntry) -> str | None:
        """Return the id of a member; which member of staff it was, is not the organization's to know."""
        is_shown = entry.user_id is not None and (not entry.as_staff or self.context["for_staff"])
        return str(entry.user_id) if is_shown else None


class StaffEntryFields(EntryFields):
    organization = serializers.CharField(source="organization.slug")


class SealFields(serializers.Serializer):  # shows an AuditSeal
    day = serializers.DateField()
    entries = serializers.IntegerField()
    digest = serializers.SerializerMethodField(help_text="64 hex digits; covers every day before, too")
    created_at = serializers.DateTimeField()

    def get_digest(self, seal: AuditSeal) -> str:
        """Return the digest as text."""
        return bytes(seal.digest).hex()


class AuditQuery(serializers.Serializer):
    act = serializers.CharField(max_length=60, required=False, help_text="key.revoked, or key for all about keys")
    user_id = serializers.UUIDField(required=False)
    since = serializers.DateField(required=False, help_text="the first day (UTC)")
    until = serializers.DateField(required=False, help_text="the last day (UTC)")


class AuditBase(ControlView):
    """Base of the lists of entries."""

    def filters(self, wanted: dict[str, Any]) -> audit.Filters:
        """Return the query as the log takes it."""
        return audit.Filters(**{name: wanted[name] for name in ("act", "user_id", "since", "until") if name in wanted})

    def entries(self, rows: Any, shape: type[serializers.Serializer], *, for_staff: bool) -> Response:
        """Return one page with the actors' names."""
        paginator = CreatedCursorPagination()
        found: Iterable[AuditEntry] = paginator.paginate_queryset(rows, self.request, view=self) or []
        names = names_of(found, for_staff=for_staff)
        return paginator.get_paginated_response(self.show(shape, found, many=True, names=names, for_staff=for_staff))


class AuditView(AuditBase):
    """The decisions in the organization's name."""

    scopes: ClassVar = {"GET": ("account",)}

    @extend_schema(operation_id="list_audit_entries", parameters=[AuditQuery], responses=EntryFields(many=True))
    def get(self, request: Request) -> Response:
        """Acts of members, keys and the platform's staff, newest first."""
        filters = self.filters(self.parse(AuditQuery, query=True))
        rows = audit.entries_of(organization=self.organization, filters=filters)
        return self.entries(rows, EntryFields, for_staff=False)


class AuditExportView(AuditBase):
    """The log as a file."""

    scopes: ClassVar = {"GET": ("account",)}

    class ExportQuery(AuditQuery):
        kind = serializers.ChoiceField(list(FORMATS), default="jsonl")

    @extend_schema(
        operation_id="export_audit_entries",
        parameters=[ExportQuery],
        responses={(200, "application/x-ndjson"): OpenApiTypes.STR, (200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponse:
        """The entries that match, as JSON lines or CSV, the oldest first; at most 20,000: name days for more."""
        wanted = self.parse(self.ExportQuery, query=True)
        return file_of(self.organization, self.filters(wanted), wanted["kind"])


class SealsView(ControlView):
    """The seals of the log."""

    scopes: ClassVar = {"GET": ("account",)}

    @extend_schema(operation_id="list_audit_seals", responses=SealFields(many=True))
    def get(self, request: Request) -> Response:
        """The sealed days, newest first. A copy kept elsewhere shows whether the log was rewritten since."""
        return self.page(audit_seals.seals_of(organization=self.organization), SealFields, ordering=("-day", "-id"))


class PlatformAuditView(AuditBase):
    """The decisions of staff."""

    staff_only = True

    @extend_schema(operation_id="list_staff_decisions", parameters=[AuditQuery], responses=StaffEntryFields(many=True))
    def get(self, request: Request) -> Response:
        """Decisions of the platform's staff about any organization, newest first. Platform staff only."""
        rows = audit.staff_entries(filters=self.filters(self.parse(AuditQuery, query=True)))
        return self.entries(rows, StaffEntryFields, for_staff=True)
