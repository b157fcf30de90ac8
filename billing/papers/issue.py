"""Papers are issued here and nowhere else: number, date and content are written together, once per subject."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date
from uuid import UUID

from django.db import connection

from billing.models import Paper, PaperFile
from billing.papers.csv_file import csv_file
from billing.papers.document import Document
from billing.papers.pdf import pdf_file
from marketplace.accounts.models import Organization


def issue(
    kind: Paper.Kind,
    *,
    organization: Organization,
    subject: str,
    document: Document,
    total_nano_usd: int,
    tax_nano_usd: int = 0,
    period: date | None = None,
    corrects: Paper | None = None,
) -> Paper:
    """Issue the paper of this kind and subject with the next number of its series, or return the one there is.

    The number is final when the caller's transaction commits, and issuers of one kind wait for one another until then.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT billing_issue_paper(%s, %s, %s, %s, %s, %s, %s, %s)",
            [
                kind,
                organization.pk,
                subject,
                period,
                corrects.pk if corrects else None,
                total_nano_usd,
                tax_nano_usd,
                json.dumps(document.as_json()),
            ],
        )
        (paper_id,) = cursor.fetchone()
    return Paper.objects.get(pk=paper_id)


def document_of(paper: Paper) -> Document:
    """Return what the paper says."""
    return Document.from_json(paper.content)


def pdf_of(paper: Paper) -> bytes:
    """Return the paper as PDF: the same bytes each time."""
    return _kept(
        paper, PaperFile.Kind.PDF, lambda: pdf_file(document_of(paper), number=paper.name, issued_on=_day(paper))
    )


def csv_of(paper: Paper) -> str:
    """Return the paper as CSV: the same text each time."""
    return _kept(
        paper,
        PaperFile.Kind.CSV,
        lambda: csv_file(document_of(paper), number=paper.name, issued_on=_day(paper)).encode(),
    ).decode()


def papers_of(organization: Organization, *, kind: str | None = None) -> list[Paper]:
    """Return the newest 500 papers of `organization`, newest first, without their content."""
    found = Paper.objects.filter(organization=organization).defer("content")
    found = found.filter(kind=kind) if kind else found
    return list(found.order_by("-issued_at", "-number")[:500])


def paper_of(organization: Organization, paper_id: UUID) -> Paper | None:
    """Return one paper of `organization`, or None if the organization has no such paper."""
    return Paper.objects.filter(organization=organization, pk=paper_id).first()


def _kept(paper: Paper, kind: PaperFile.Kind, print_file: Callable[[], bytes]) -> bytes:
    """Return the file as it was first printed, which is now if there is none yet. Of two first prints one is kept."""
    files = PaperFile.objects.filter(paper=paper, kind=kind)
    found = files.first()
    if found is None:
        PaperFile.objects.bulk_create([PaperFile(paper=paper, kind=kind, content=print_file())], ignore_conflicts=True)
        found = files.get()
    return bytes(found.content)


def _day(paper: Paper) -> date:
    return paper.issued_at.astimezone(UTC).date()
