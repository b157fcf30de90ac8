"""A model's protection: its rules, and the customers of whom there is something to decide; asking for more calls."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from marketplace.accounts.errors import Refusal
from marketplace.catalog import copying
from marketplace.catalog import selectors as catalog
from marketplace.catalog.call_price import call_to_copy, cost_of_copy
from marketplace.catalog.models import Model
from marketplace.protection import policies, selectors, services
from marketplace.protection.models import Protection
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.protection_forms import MoreCallsForm, ProtectionForm
from marketplace.web.refusals import show_as_message, show_in_form

_DONE = {
    "trust": "No rule applies to this customer any more.",
    "grant": "The customer has the calls that it asked for.",
    "decline": "The request is declined. The customer may ask again.",
    "tell": "The customer goes on as before.",
    "slow": "The customer makes one call in five minutes.",
    "ask": "The customer is down to the introductory allowance.",
    "stop": "Calls of this customer are refused. It can appeal on the model's page.",
}


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("publish")
def protection(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Rules of one model; POST replaces them."""
    model = _owned(acting, slug)
    row = selectors.protection_of(model)
    form = ProtectionForm(request.POST or None, initial=_initial(row))
    if request.method == "POST" and form.is_valid():
        try:
            services.set_protection(model=model, **form.rules())
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, "Saved. The rules hold from the next second on.")
            return redirect("web:protection", slug=slug)
    contract = model.facts.newest.contract if model.facts.newest else None
    cost = cost_of_copy(model.facts.price, call_to_copy(model)) if model.facts.price else None
    context = {
        "model": model,
        "form": form,
        "contract": contract,
        "customers": selectors.customers_to_see(model),
        "is_counting": bool(row.on_copying),
        "copy_cost": cost,
        "cheap_copy_nano_usd": copying.CHEAP_COPY_NANO_USD,
        "flat_price_nano_usd": copying.flat_price_nano_usd(),
        "alarm_at": policies.ALARM_AT,
    }
    return render(request, "web/protection.html", context, status=400 if request.method == "POST" else 200)


@require_POST
@member_page("publish")
def answer_customer(request: HttpRequest, acting: Acting, slug: str, customer_id: str, answer: str) -> HttpResponse:
    """Carry out one click about one customer of the model."""
    customer = selectors.customer_of(model=_owned(acting, slug), customer_id=int(customer_id))
    if customer is None:
        raise Http404("no such customer")
    try:
        services.answer_customer(customer=customer, answer=answer)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    else:
        messages.success(request, _DONE[answer])
    return redirect("web:protection", slug=slug)


@require_POST
@member_page("predict")
def more_calls(request: HttpRequest, acting: Acting, org: str, slug: str) -> HttpResponse:
    """Ask the creator of a model for more calls, or to lift a stop."""
    model = catalog.visible_model(org_slug=org, slug=slug, viewer=acting.organization)
    if model is None:
        raise Http404("no such model")
    form = MoreCallsForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing was asked: name a number of calls per day.")
    else:
        try:
            services.ask_for_more(
                model=model, organization=acting.organization, calls_per_day=form.cleaned_data["calls_per_day"]
            )
        except Refusal as refusal:
            show_as_message(request, refusal, prefix="Nothing was asked.")
        else:
            messages.success(request, "The creator is told, under a pseudonym for your organization.")
    return redirect(reverse("web:model", kwargs={"org": org, "slug": slug}) + "#protection")


def _initial(row: Protection) -> dict[str, object]:
    return {"on_copying": row.on_copying, "calls_per_day": row.calls_per_day, "logprobs_open": row.logprobs_open}


def _owned(acting: Acting, slug: str) -> Model:
    model = own_model(acting, slug)
    if model.kind != Model.Kind.ADAPTER:
        raise Http404("no such model")
    return model
