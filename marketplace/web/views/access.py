"""Admission to a model on pages: a customer accepts its licence and asks for access, its creator answers."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from marketplace.access import selectors, services
from marketplace.access.policies import ANSWERABLE
from marketplace.accounts.errors import Refusal
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model
from marketplace.web.access_forms import AnswerForm, AskForm
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.refusals import show_as_message

PAGE_SIZE = 25
_DONE = {
    "grant": "{} may call the model now, and is told.",
    "decline": "{} is told that you declined.",
    "revoke": "Calls of {} are refused within two seconds, and it is told.",
}


@require_POST
@member_page("predict")
def accept_licence(request: HttpRequest, acting: Acting, org: str, slug: str) -> HttpResponse:
    """Accept the licence that the page showed, for the organization."""
    model = _visible(acting, org, slug)
    try:
        services.accept_licence(
            model=model,
            organization=acting.organization,
            digest=request.POST.get("digest", "")[:64],
            actor=acting.actor,
        )
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was accepted.")
    else:
        messages.success(request, f"{acting.organization.slug} has accepted the licence. Its calls go through now.")
    return _to_model(org, slug)


@require_POST
@member_page("predict")
def ask_for_access(request: HttpRequest, acting: Acting, org: str, slug: str) -> HttpResponse:
    """Ask the creator to be let in, with a reason."""
    model = _visible(acting, org, slug)
    form = AskForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing was asked: say what for, in at most 1,000 characters.")
        return _to_model(org, slug)
    try:
        services.ask_for_access(
            model=model,
            organization=acting.organization,
            reason=form.cleaned_data["reason"],
            actor=acting.actor,
        )
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was asked.")
    else:
        messages.success(request, "The creator is told. You get an alert once there is an answer.")
    return _to_model(org, slug)


@require_safe
@never_cache
@member_page("publish")
def requests(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Show every organization that asked for access to one model."""
    model = own_model(acting, slug)
    page = Paginator(selectors.requests_for(model=model), PAGE_SIZE).get_page(request.GET.get("page"))
    rows = [(row, [answer for answer, states in ANSWERABLE.items() if row.state in states]) for row in page]
    return render(request, "web/access.html", {"model": model, "rows": rows, "page": page})


@require_POST
@member_page("publish")
def answer(request: HttpRequest, acting: Acting, slug: str, request_id: str, answer: str) -> HttpResponse:
    """Grant, decline or revoke."""
    own_model(acting, slug)
    found = selectors.owned_request(organization=acting.organization, request_id=UUID(request_id))
    if found is None or found.model.slug != slug:
        raise Http404("no such request")
    form = AnswerForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing changed: an answer has at most 1,000 characters.")
        return redirect("web:access_requests", slug=slug)
    try:
        services.answer_request(request=found, answer=answer, text=form.cleaned_data["text"], actor=acting.actor)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    else:
        messages.success(request, _DONE[answer].format(found.organization.slug))
    return redirect("web:access_requests", slug=slug)


def _visible(acting: Acting, org: str, slug: str) -> Model:
    model = catalog.visible_model(org_slug=org, slug=slug, viewer=acting.organization)
    if model is None:
        raise Http404("no such model")
    return model


def _to_model(org: str, slug: str) -> HttpResponse:
    return redirect(reverse("web:model", kwargs={"org": org, "slug": slug}) + "#admission")
