"""The creator's overview of all models, and what they earned by day, model and version."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from billing.rollups import earnings as billing
from billing.rollups.version_earnings import VersionEarnings, by_version
from marketplace.catalog import selectors
from marketplace.catalog.models import Version
from marketplace.promises.selectors import refunds_borne
from marketplace.watch.overview import overview
from marketplace.watch.selectors import DAYS as RANGES
from marketplace.web.acting import Acting, member_page
from marketplace.web.charts import build_day_chart
from marketplace.web.forms import PlainForm

DAYS = 30
MOST_DAYS = 366
MOST_MODELS = MOST_VERSIONS = 50  # on one page
MOST_ROWS = 10_000  # in a file
MOST_REFUNDS = 20
CSV_COLUMNS = (
    "day",
    "model",
    "version",
    "predictions",
    "prompt_tokens",
    "completion_tokens",
    "charged_nano_usd",
    "earned_nano_usd",
)


class RangeForm(PlainForm):
    """Days (UTC) from `since` to `until`, both among them."""

    since = forms.DateField(label="From (UTC)", widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label="To, inclusive", widget=forms.DateInput(attrs={"type": "date"}))

    def clean(self) -> dict[str, Any]:
        """Refuse days in the wrong order, and more than a year."""
        data: dict[str, Any] = super().clean() or {}
        since, until = data.get("since"), data.get("until")
        if since and until and not 0 <= (until - since).days < MOST_DAYS:
            raise forms.ValidationError(f"The last day follows the first one within {MOST_DAYS} days.")
        return data


@require_safe
@never_cache
@member_page("publish")
def selling(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Every model of the organization with its calls, revenue, errors, thumbs and alarms."""
    days = next((days for days in RANGES if str(days) == request.GET.get("days")), DAYS)
    today = timezone.now().date()
    by_day = billing.by_day(acting.organization, since=today - timedelta(days=days - 1))
    lines = overview(acting.organization, days=days)
    values = {line.day: line for line in by_day if line.day is not None}
    context = {
        "days": days,
        "ranges": RANGES,
        "lines": lines,
        "by_day": by_day,
        "revenue": build_day_chart(
            {day: max(0, line.creator_nano_usd) for day, line in values.items()}, last=today, days=days
        ),
        "calls": build_day_chart({day: line.predictions for day, line in values.items()}, last=today, days=days),
        "firing": [line for line in lines if line.firing],
    }
    return render(request, "web/selling.html", context)


@require_safe
@never_cache
@member_page("publish")
def earnings(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Earnings of the organization's models in some days: by day, model and version."""
    form, since, until = _range(request)
    end = until + timedelta(days=1)
    by_day = billing.by_day(acting.organization, since=since, until=end)
    values = {line.day: max(0, line.creator_nano_usd) for line in by_day if line.day is not None}
    models, count = billing.by_model(acting.organization, limit=MOST_MODELS, since=since, until=end)
    shown = [line.model_id for line in models if line.model_id is not None]
    ever = billing.customers_ever(acting.organization, shown)
    versions = by_version(acting.organization, model_ids=shown, limit=MOST_VERSIONS, since=since, until=end)
    context = {
        "form": form,
        "since": since,
        "until": until,
        "balances": billing.balances(acting.organization),
        "total": billing.earnings_total(acting.organization),
        "recent": billing.earnings_total(acting.organization, since=since, until=end),
        "by_day": by_day,
        "by_model": [(line, line.model_id and ever.get(line.model_id)) for line in models],
        "more_models": count - len(models),
        "by_version": list(zip(versions, _numbers(versions), strict=True)),
        "chart": build_day_chart(values, last=until, days=(until - since).days + 1),
        "promise_refunds": refunds_borne(acting.organization)[:MOST_REFUNDS],
        "has_models": selectors.models_of(organization=acting.organization).exists(),
    }
    return render(request, "web/earnings.html", context, status=400 if form.errors else 200)


@require_safe
@never_cache
@member_page("publish")
def earnings_csv(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The same days as a file, with a row for each day and version; amounts in nano-dollars."""
    _, since, until = _range(request)
    rows = by_version(acting.organization, since=since, until=until + timedelta(days=1), each_day=True, limit=MOST_ROWS)
    name = f"earnings-{acting.organization.slug}-{since}-{until}.csv"
    response = HttpResponse(
        content_type="text/csv; charset=utf-8", headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
    writer = csv.writer(response)
    writer.writerow(CSV_COLUMNS)
    for row, number in zip(rows, _numbers(rows), strict=True):
        amounts = (row.prompt_tokens, row.completion_tokens, row.charged_nano_usd, row.earned_nano_usd)
        writer.writerow((row.day, row.model_name, number, row.predictions, *amounts))
    return response


def _range(request: HttpRequest) -> tuple[RangeForm, date, date]:
    """Return the days that are asked for, the last 30 unless they are whole."""
    today = timezone.now().date()
    since, until = today - timedelta(days=DAYS - 1), today
    form = RangeForm(request.GET if "since" in request.GET or "until" in request.GET else None)
    if form.is_valid():
        return form, form.cleaned_data["since"], form.cleaned_data["until"]
    if not form.is_bound:
        form = RangeForm(initial={"since": since, "until": until})
    return form, since, until


def _numbers(rows: Sequence[VersionEarnings]) -> list[int | None]:
    """Return the number of each row's version."""
    ids: set[UUID] = {row.version_id for row in rows if row.version_id is not None}
    found = dict(Version.objects.filter(pk__in=ids).values_list("pk", "number"))
    return [None if row.version_id is None else found.get(row.version_id) for row in rows]
