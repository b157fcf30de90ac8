"""The consumer's pages: overview, playground tokens, choice of organization."""

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
from billing.rollups.earnings import earnings_total
from billing.rollups.usage import uncounted
from marketplace.accounts import selectors as accounts
from marketplace.accounts import services
from marketplace.accounts.errors import InvalidCredentials, NotAllowed, Refusal
from marketplace.accounts.playground_tokens import LIFETIME_SECONDS
from marketplace.accounts.policies import is_staff
from marketplace.accounts.second_factor import SecondFactorMissing
from marketplace.catalog import selectors as catalog
from marketplace.web import queries
from marketplace.web.acting import Acting, acting_of, choose_organization, member_page
from marketplace.web.charts import DayChart, build_day_chart
from marketplace.web.refusals import as_json
from marketplace.web.views.creator import checklist_for

DAYS = 30


@require_safe
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    """The page after signing in. Staff who belong to no organization have theirs under Platform."""
    user = request.user
    if user.is_authenticated and is_staff(user=user) and acting_of(request) is None:
        return redirect("web:platform")
    return _overview(request)


@member_page()
def _overview(request: HttpRequest, acting: Acting) -> HttpResponse:
    """A person's things, and the next step."""
    organization = acting.organization
    daily = queries.daily_usage(organization=organization, days=DAYS) if acting.may_read else None
    context = {
        "daily": daily,
        "uncounted": uncounted(organization) if acting.may_read else 0,
        "chart": _chart(daily.costs, DAYS) if daily and daily.predictions else None,
        "wallet": billing.wallet(organization) if acting.may_account else None,
        "keys": accounts.working_keys_of(organization=organization).count(),
        "models": catalog.models_of(organization=organization).count(),
        "earned": earnings_total(organization) if acting.may_publish else None,
        "days": DAYS,
        "checklist": checklist_for(acting) if acting.may_publish else None,
    }
    return render(request, "web/home.html", context)


@require_POST
@member_page(without_factor=True)
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
    if acting.lacks_second_factor:
        return as_json(SecondFactorMissing())
    if not acting.may_spend:
        return as_json(NotAllowed("Your role in this organization may not spend its money. Ask its owner."))
    try:
        token = services.open_playground(user=acting.user, organization=acting.organization)
    except Refusal as refusal:
        return as_json(refusal)
    return JsonResponse({"token": token, "expires_in": LIFETIME_SECONDS})


def _chart(costs: Mapping[date, int], days: int) -> DayChart:
    return build_day_chart(costs, last=timezone.now().date(), days=days)
