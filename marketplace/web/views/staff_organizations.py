"""The staff's pages about one organization: search, suspension and its end, refunds."""

from __future__ import annotations

import uuid
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing.selectors import top_ups, wallet
from marketplace.accounts import audit
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import Organization
from marketplace.accounts.selectors import organization_named, working_keys_of
from marketplace.catalog.selectors import models_of
from marketplace.operations import oversight, refunds, suspensions
from marketplace.operations.refunds import FoundPrediction, FoundTopUp
from marketplace.web.operator_forms import FindForm, RefundForm, SearchForm, SuspensionForm
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.views.staff import operators_only, staff_of
from protocol.money import decimal

PAGE_SIZE = 50


@require_safe
@operators_only
def search(request: HttpRequest) -> HttpResponse:
    """Organizations, newest first, or those that a name or an address finds."""
    form = SearchForm(request.GET)
    wanted: dict[str, Any] = form.cleaned_data if form.is_valid() else {"q": "", "suspended": False}
    found = oversight.organizations(query=wanted["q"], suspended=wanted["suspended"])
    parameters = request.GET.copy()
    parameters.pop("page", None)
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {"form": form, "page": page, "parameters": parameters.urlencode()}
    return render(request, "web/platform_organizations.html", context)


@require_safe
@operators_only
def organization(request: HttpRequest, slug: str) -> HttpResponse:
    """One organization as staff see it: money, members' number, models, and what was done to it."""
    return _page(request, _found(slug), SuspensionForm(), status=200)


@require_POST
@operators_only
def change_standing(request: HttpRequest, slug: str, action: str) -> HttpResponse:
    """Suspend an organization, or end its suspension."""
    found = _found(slug)
    form = SuspensionForm(request.POST)
    if not form.is_valid():
        return _page(request, found, form, status=400)
    act = suspensions.suspend_organization if action == "suspend" else suspensions.reinstate_organization
    try:
        act(slug=slug, by=staff_of(request), reason=form.cleaned_data["reason"])
    except Refusal as refusal:
        show_in_form(form, refusal)
        return _page(request, found, form, status=refusal.status)
    done = "is suspended" if action == "suspend" else "is no longer suspended"
    messages.success(request, f"{slug} {done}. Its members are told by mail.")
    return redirect("web:staff_organization", slug=slug)


@require_safe
@operators_only
def find_refund(request: HttpRequest) -> HttpResponse:
    """Find a prediction or a top-up by its id, and what of it can go back."""
    form = FindForm(request.GET or None)
    found = refunds.find(form.cleaned_data["id"]) if request.GET and form.is_valid() else None
    if request.GET and form.is_valid() and found is None:
        form.add_error("id", "No prediction that was paid for and no top-up has this id.")
    return _refund_page(request, form, found, None, status=200)


@require_http_methods(["POST"])
@operators_only
def refund(request: HttpRequest, thing_id: UUID) -> HttpResponse:
    """Give money back, once for each time that the page was shown."""
    found = refunds.find(thing_id)
    if found is None:
        raise Http404("nothing has this id")
    form = RefundForm(request.POST)
    search_form = FindForm({"id": str(thing_id)})
    if not form.is_valid():
        return _refund_page(request, search_form, found, form, status=400)
    by, reason, request_id = staff_of(request), form.cleaned_data["reason"], form.cleaned_data["request_id"]
    try:
        if isinstance(found, FoundPrediction):
            refunds.refund_prediction(
                prediction_id=thing_id, by=by, reason=reason, amount_nano_usd=form.nano_usd, request_id=request_id
            )
        elif form.cents is None:
            form.add_error("amount", "A card takes whole cents.")
            return _refund_page(request, search_form, found, form, status=400)
        else:
            refunds.refund_payment(
                top_up_id=thing_id, by=by, reason=reason, amount_cents=form.cents, request_id=request_id
            )
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was given back.")
    else:
        messages.success(request, "The refund is booked.")
    response = redirect("web:staff_refunds")
    response.headers["Location"] += f"?id={thing_id}"
    return response


def _found(slug: str) -> Organization:
    found = organization_named(slug)
    if found is None:
        raise Http404("no such organization")
    return found


def _page(request: HttpRequest, found: Organization, form: SuspensionForm, *, status: int) -> HttpResponse:
    context: dict[str, Any] = {
        "organization": found,
        "members": found.memberships.count(),
        "keys": working_keys_of(organization=found).count(),
        "wallet": wallet(found),
        "models": models_of(organization=found)[:PAGE_SIZE],
        "top_ups": top_ups(found, limit=20),
        "acts": audit.entries_of(organization=found)[:30],
        "form": form,
    }
    return render(request, "web/platform_organization.html", context, status=status)


def _all_of(found: FoundPrediction | FoundTopUp | None) -> str:
    """Return the dollars that can go back, as digits: most refunds are of everything, and nobody counts nine zeros."""
    if isinstance(found, FoundPrediction):
        return decimal(found.left_nano_usd).rstrip("0").rstrip(".")
    return decimal(found.left_cents * 10**7, 2) if found else ""


def _refund_page(
    request: HttpRequest,
    search_form: FindForm,
    found: FoundPrediction | FoundTopUp | None,
    form: RefundForm | None,
    *,
    status: int,
) -> HttpResponse:
    context = {
        "find_form": search_form,
        "prediction": found if isinstance(found, FoundPrediction) else None,
        "top_up": found if isinstance(found, FoundTopUp) else None,
        "form": form or RefundForm(initial={"request_id": uuid.uuid4(), "amount": _all_of(found)}),
    }
    return render(request, "web/platform_refunds.html", context, status=status)
