"""Copies of data: a person's as one JSON document, an organization's as a ZIP with one file of JSON lines a table."""

from __future__ import annotations

import json
import zipfile
from typing import IO, Any

from allauth.account.models import EmailAddress
from allauth.usersessions.models import UserSession
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, transaction

from marketplace.accounts.models import ApiKey, Membership, Organization, User
from marketplace.privacy.errors import ExportTooLarge
from marketplace.privacy.tables import EXPORTED

CHUNK = 2_000  # rows read at once
FORMAT = "intarsia/export/v1"


def user_copy(user: User) -> dict[str, Any]:
    """Return what the platform keeps of a person, passwords' hashes and keys' digests left out."""
    return {
        "format": FORMAT,
        "user": {"id": user.pk, "email": user.email, "joined": user.date_joined, "last_login": user.last_login},
        "addresses": list(EmailAddress.objects.filter(user=user).values("email", "verified", "primary")),
        "sessions": list(
            UserSession.objects.filter(user=user).values("ip", "user_agent", "created_at", "last_seen_at")
        ),
        "memberships": list(
            Membership.objects.filter(user=user).values("organization_id", "organization__slug", "role", "created_at")
        ),
        "keys_created": list(ApiKey.objects.filter(created_by=user).values("id", "name", "organization_id")),
    }


def write_organization_copy(organization: Organization, target: IO[bytes], *, max_rows: int | None = None) -> int:
    """Write everything that the platform keeps of an organization as one moment had it; return the number of rows.

    Raises ExportTooLarge beyond `max_rows`; what was written until then is no copy.
    """
    written = 0
    with transaction.atomic(), zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        if len(connection.savepoint_ids) == 0:  # the outermost transaction: one snapshot for all tables
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for table in EXPORTED:
            with archive.open(f"{table.name}.jsonl", "w", force_zip64=True) as file:
                rows = table.rows(organization).order_by("pk").values(*table.columns)
                for row in rows.iterator(chunk_size=CHUNK):
                    written += 1
                    if max_rows is not None and written > max_rows:
                        raise ExportTooLarge("this organization has too much data for a page; ask the platform for it")
                    shown = row if table.opened is None else table.opened(organization, row)
                    file.write(to_json(shown).encode() + b"\n")
        archive.writestr("export.json", to_json({"format": FORMAT, "organization": organization.pk, "rows": written}))
    return written


def to_json(value: Any) -> str:
    """Return JSON with times and ids as text."""
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False)
