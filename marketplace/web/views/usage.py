"""Usage: sums by day, model and key, single predictions in pages, and all of it as a file."""

from __future__ import annotations

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from billing.retention import details_kept_since
from billing.rollups.usage import uncounted
from billing.usage_lists import MAX_CSV_ROWS, Position, usage_csv, usage_page
from marketplace.promises.selectors import refunds_of
from marketplace.web import queries
from marketplace.web.acting import Acting, member_page
from marketplace.web.charts import build_day_chart
from marketplace.web.usage_form import RANGES, UsageForm

PAGE_SIZE = 50
MOST_REFUNDS = 20


@require_safe
@never_cache
@member_page("read")
def usage(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Spending of a period by day, model and key, and single predictions with their receipts."""
    form = UsageForm(request.GET, organization=acting.organization)
    wanted = form.wanted()
    after = Position.read(request.GET.get("after", "")[:60])
    overview = queries.usage_overview(organization=acting.organization, wanted=wanted)
    parameters = request.GET.copy()
    parameters.pop("after", None)
    days = (wanted.until - wanted.since).days
    context = {
        "form": form,
        "wanted": wanted,
        "last_day": wanted.until - timedelta(days=1),
        "overview": overview,
        "daily": overview.daily,
        "chart": build_day_chart(overview.daily.costs, last=wanted.until - timedelta(days=1), days=days),
        "page": usage_page(acting.organization, wanted, after=after, limit=PAGE_SIZE),
        "is_first": after is None,
        "uncounted": uncounted(acting.organization),
        "parameters": parameters.urlencode(),
        "promise_refunds": refunds_of(acting.organization)[:MOST_REFUNDS],
        "details_kept_since": details_kept_since(),
        "days": days,
        "ranges": RANGES,
        "filtered": bool(parameters),
        "most_csv_rows": MAX_CSV_ROWS,
    }
    return render(request, "web/usage.html", context)


@require_safe
@never_cache
@member_page("read")
def csv_file(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The same predictions as a file."""
    wanted = UsageForm(request.GET, organization=acting.organization).wanted()
    response = HttpResponse(usage_csv(acting.organization, wanted), content_type="text/csv; charset=utf-8")
    name = f"{acting.organization.slug}-usage-{wanted.since}-{wanted.until - timedelta(days=1)}.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
