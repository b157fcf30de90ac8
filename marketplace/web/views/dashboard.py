"""The consumer's pages: overview, usage, playground tokens, choice of organization."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from billing import selectors as billing
from billing.retention import details_kept_since
from billing.rollups.earnings import earnings_total
from marketplace.accounts import selectors as accounts
from marketplace.accounts.errors import InvalidCredentials, NotAllowed
from marketplace.accounts.playground_tokens import LIFETIME_SECONDS, issue_playground_token
from marketplace.catalog import selectors as catalog
from marketplace.promises.selectors import refunds_of
from marketplace.web import queries
from marketplace.web.acting import Acting, acting_of, choose_organization, member_page
from marketplace.web.charts import DayChart, build_day_chart
from marketplace.web.refusals import as_json
from marketplace.web.views.creator import checklist_for

DAYS = 30
RANGES = (7, 30, 90)
MOST_REFUNDS = 20


@require_safe
@never_cache
@member_page()
def home(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The page after signing in: what a person has, and what to do next."""
    organization = acting.organization
    daily = queries.daily_usage(organization=organization, days=DAYS) if acting.may_account else None
    context = {
        "daily": daily,
        "chart": _chart(daily.costs, DAYS) if daily and daily.predictions else None,
        "wallet": billing.wallet(organization) if acting.may_account else None,
        "keys": accounts.working_keys_of(organization=organization).count(),
        "models": catalog.models_of(organization=organization).count(),
        "earned": earnings_total(organization) if acting.may_publish else None,
        "days": DAYS,
        "checklist": checklist_for(acting) if acting.may_publish else None,
    }
    return render(request, "web/home.html", context)


@require_safe
@never_cache
@member_page("account")
def usage(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Spending by day, model and key, and the latest predictions with their receipts."""
    days = next((days for days in RANGES if str(days) == request.GET.get("days")), DAYS)
    overview = queries.usage_overview(organization=acting.organization, days=days)
    context = {
        "overview": overview,
        "daily": overview.daily,
        "chart": _chart(overview.daily.costs, days),
        "rows": billing.usage_rows(acting.organization, limit=50),
        "promise_refunds": refunds_of(acting.organization)[:MOST_REFUNDS],
        "details_kept_since": details_kept_since(),
        "days": days,
        "ranges": RANGES,
    }
    return render(request, "web/usage.html", context)


@require_POST
@member_page()
def switch_organization(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Act for another organization of the user."""
    slug = request.POST.get("organization", "")
    if not choose_organization(request, slug=slug):
        raise Http404("no such organization")
    messages.success(request, f"You now act for {slug}.")
    return redirect("web:dashboard")


@require_POST
@never_cache
def playground_token(request: HttpRequest) -> JsonResponse:
    """A short-lived bearer token for the page's own calls; the errors are for the page's script to show."""
    acting = acting_of(request)
    if acting is None:
        return as_json(InvalidCredentials("Sign in to use the playground.", code="not_authenticated"))
    if not acting.may_spend:
        return as_json(NotAllowed("Your role in this organization may not spend its money. Ask its owner."))
    assert request.user.is_authenticated
    token = issue_playground_token(user=request.user, organization=acting.organization)
    return JsonResponse({"token": token, "expires_in": LIFETIME_SECONDS})


def _chart(costs: Mapping[date, int], days: int) -> DayChart:
    return build_day_chart(costs, last=timezone.now().date(), days=days)
