"""Monthly statements: opening balance, movements, closing balance, and a file of every line for an accountant."""

from __future__ import annotations

import csv
import io
from datetime import date

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from billing import account_statements as billing
from billing.papers.csv_file import safe_text
from billing.papers.download import download
from billing.papers.pdf import pdf_file
from billing.papers.statements import organization_statement
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import Organization
from marketplace.web.acting import Acting, member_page
from marketplace.web.refusals import show_as_message
from protocol.money import decimal

# About 10 MB: larger months are read through the API, page by page.
MAX_CSV_LINES = 100_000
COLUMNS = ("number", "time_utc", "account", "kind", "reference", "memo", "amount_usd")


@require_safe
@never_cache
@member_page("account")
def statements(request: HttpRequest, acting: Acting) -> HttpResponse:
    """One month of the organization's accounts; this month unless the address names another."""
    this_month = timezone.now().date().replace(day=1)
    month = parse_month(request.GET.get("month")) if "month" in request.GET else this_month
    months = sorted({this_month, month, *billing.months(acting.organization)}, reverse=True)
    context = {
        "month": month,
        "months": months,
        "closed": billing.is_closed(month),
        "statements": billing.statements(acting.organization, month),
    }
    return render(request, "web/statements.html", context)


@require_safe
@never_cache
@member_page("account")
def statement_csv(request: HttpRequest, acting: Acting, month: str) -> HttpResponse:
    """Every line of a month as CSV, each account between its opening and its closing balance."""
    first = parse_month(month)
    try:
        text = _csv(acting.organization, first)
    except TooManyLines as refusal:
        show_as_message(request, refusal, prefix="No file was made.")
        return redirect(f"{reverse('web:statements')}?month={first:%Y-%m}")
    name = f"{acting.organization.slug}-{first:%Y-%m}.csv"
    return download(text, name)


@require_safe
@never_cache
@member_page("account")
def statement_pdf(request: HttpRequest, acting: Acting, month: str) -> HttpResponse:
    """A month's balances, movements by kind, payments and tax as PDF."""
    first = parse_month(month)
    content = pdf_file(organization_statement(acting.organization, first), number="", issued_on=None)
    return download(content, f"{acting.organization.slug}-{first:%Y-%m}.pdf")


def parse_month(text: str | None) -> date:
    """Return the first day of a month written as YYYY-MM. Raises Http404."""
    try:
        month = date.fromisoformat(f"{text}-01")
    except ValueError:
        raise Http404("no such month") from None
    if not 2000 <= month.year <= 2099:
        raise Http404("no such month")
    return month


class TooManyLines(Refusal):
    """A month has more lines than a browser should wait for."""

    code = "too_many_lines"
    status = 422


def _csv(organization: Organization, month: date) -> str:
    """Return the file. Raises TooManyLines."""
    found = billing.statements(organization, month)
    if sum(movement.lines for statement in found for movement in statement.movements) > MAX_CSV_LINES:
        raise TooManyLines(
            f"This month has more than {MAX_CSV_LINES:,} lines: read them in pages, GET /api/v1/statements/lines"
        )
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for statement in found:
        account = statement.account_kind
        writer.writerow(("", "", account, "opening balance", "", "", decimal(statement.opening_nano_usd)))
        # The balance is of this file's lines: a month that is open may have got more since its opening was read.
        after, balance = 0, statement.opening_nano_usd
        while lines := billing.statement_lines(organization, account, month, after=after, limit=billing.MAX_LINES):
            for line in lines:
                time = line.booked_at.strftime("%Y-%m-%d %H:%M:%S")
                texts = (safe_text(line.reference), safe_text(line.memo))
                writer.writerow((line.sequence, time, account, line.kind, *texts, decimal(line.amount_nano_usd)))
                balance += line.amount_nano_usd
            after = lines[-1].sequence
        writer.writerow(("", "", account, "closing balance", "", "", decimal(balance)))
    return out.getvalue()
