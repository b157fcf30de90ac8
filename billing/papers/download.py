"""A paper as the answer to a request."""

from __future__ import annotations

from django.http import HttpResponse

CONTENT_TYPES = {"pdf": "application/pdf", "csv": "text/csv; charset=utf-8"}


def download(content: bytes | str, name: str) -> HttpResponse:
    """Return a file to download; `name` ends in .pdf or .csv, and is made of letters, digits, dashes and dots."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return HttpResponse(content, content_type=CONTENT_TYPES[name.rpartition(".")[2]], headers=headers)
