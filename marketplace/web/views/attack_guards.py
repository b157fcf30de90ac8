"""The guard before a model, on the page of its creator: put in place by a run of the creator's rows, and removed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from marketplace.accounts.errors import Refusal
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model, Version
from marketplace.evals import selectors
from marketplace.evals.models import EvalRun, EvalSet
from marketplace.evals.quotes import worst_case
from marketplace.evals.runs import remove_guard, start_run
from marketplace.guards.attacks import LEAST_ROWS
from marketplace.guards.counts import attacks_refused
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.refusals import show_as_message

GUARD_SLUG = "guard"
MOST_SETS = 5  # the newest are offered


@require_POST
@member_page("publish")
def attack_guard(request: HttpRequest, acting: Acting, slug: str, set_id: UUID) -> HttpResponse:
    """Begin the run that puts the platform's guard before a model."""
    model = own_model(acting, slug)
    stored = selectors.owned_set(organization=acting.organization, set_id=set_id)
    guard = _platforms_guard()
    if stored is None or stored.model_id != model.pk or guard is None or model.facts.newest is None:
        raise Http404("no such set")
    try:
        start_run(eval_set=stored, version=model.facts.newest, guard=guard)
        messages.success(request, f"{guard.model.full_name} reads your rows. It guards the model when it is done.")
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was begun.")
    return redirect("web:my_model", slug=slug)


@require_POST
@member_page("publish")
def remove_attack_guard(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Let a model be asked without its guard."""
    remove_guard(model=own_model(acting, slug))
    messages.success(request, "The guard is removed. Requests pass unjudged a second from now at the latest.")
    return redirect("web:my_model", slug=slug)


def attack_guard_context(model: Model) -> dict[str, Any]:
    """Return what `parts/attack_guard.html` shows of the creator's own model."""
    guard, found = _platforms_guard(), selectors.guard_of(model=model)
    runs = selectors.runs_of(model=model).filter(state__in=EvalRun.OPEN, guard__isnull=False)
    ready = selectors.sets_of(model=model).filter(state=EvalSet.State.READY, rows__gte=LEAST_ROWS)
    sets = list(ready.order_by("-number")[:MOST_SETS]) if guard else []
    newest = model.facts.newest
    return {
        "name": f"{PLATFORM_SLUG}/{GUARD_SLUG}",
        "offered": guard is not None,
        "least": LEAST_ROWS,
        "found": found,
        "refused": attacks_refused(settings.ENV.valkey_url, model.pk) if found else None,
        "open": runs.first(),
        "sets": [(one, worst_case(eval_set=one, version=newest, guard=guard)) for one in sets if newest],
    }


def _platforms_guard() -> Version | None:
    return catalog.published_version(org_slug=PLATFORM_SLUG, slug=GUARD_SLUG, number=None)
