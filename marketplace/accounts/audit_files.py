"""The audit log as a file. It is made in memory while somebody waits, so it has a limit; a longer log is many files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from django.http import HttpResponse

from marketplace.accounts.audit import Filters, entries_of
from marketplace.accounts.audit_names import names_of
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import AuditEntry, Organization

MAX_ENTRIES = 20_000
FIELDS = ("id", "created_at", "actor", "act", "subject", "data")
# A cell that begins so is a formula to spreadsheet programs.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def file_of(organization: Organization, filters: Filters, kind: str) -> HttpResponse:
    """Return the entries that match as a download, the oldest first. `kind` is one of FORMATS.

    Raises InvalidInput where more than `MAX_ENTRIES` match.
    """
    found = entries_of(organization=organization, filters=filters).order_by("created_at", "id")
    rows = list(found[: MAX_ENTRIES + 1])
    if len(rows) > MAX_ENTRIES:
        raise InvalidInput(
            f"a file has at most {MAX_ENTRIES:,} entries: name days", code="too_many_entries", field="since"
        )
    content_type, write = FORMATS[kind]
    names = names_of(rows)
    response = HttpResponse(write([_row(entry, names) for entry in rows]), content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="audit-{organization.slug}.{kind}"'
    return response


def _row(entry: AuditEntry, names: dict[int, str]) -> dict[str, Any]:
    return {
        "id": entry.pk,
        "created_at": entry.created_at.isoformat(),
        "actor": names[entry.pk],
        "act": entry.act,
        "subject": entry.subject,
        "data": entry.data,
    }


def _json_lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    target = io.StringIO()
    writer = csv.writer(target)
    writer.writerow(FIELDS)
    for row in rows:
        texts = [json.dumps(row[name], ensure_ascii=False) if name == "data" else str(row[name]) for name in FIELDS]
        writer.writerow([f"'{text}" if text.startswith(_FORMULA) else text for text in texts])
    return target.getvalue()


FORMATS: dict[str, tuple[str, Callable[[Sequence[dict[str, Any]]], str]]] = {
    "jsonl": ("application/x-ndjson", _json_lines),
    "csv": ("text/csv", _csv),
}
