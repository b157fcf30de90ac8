"""The staff's pages across organizations: health of the books, events of guards, evaluations."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from billing.incidents import clear_incident
from marketplace.accounts.errors import Refusal
from marketplace.operations import oversight
from marketplace.web.operator_forms import ClearIncidentForm
from marketplace.web.refusals import show_as_message
from marketplace.web.views.staff import operators_only, staff_of

MOST_RUNS = 50


@require_safe
@operators_only
def ledger(request: HttpRequest) -> HttpResponse:
    """The trial balance, the checks of the books, incidents that wait for a person, and what is late."""
    return render(request, "web/ledger_health.html", {"health": oversight.ledger_health(), "form": ClearIncidentForm()})


@require_POST
@operators_only
def resolve_incident(request: HttpRequest, incident_id: int) -> HttpResponse:
    """Resolve an incident of the books, with a code of the authenticator app and what was found."""
    form = ClearIncidentForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing changed: a code of six digits and what was found are needed.")
        return redirect("web:ledger_health")
    try:
        clear_incident(incident_id=incident_id, user=staff_of(request), **form.cleaned_data)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    else:
        messages.success(request, "The incident is resolved.")
    return redirect("web:ledger_health")


@require_safe
@operators_only
def guard_events(request: HttpRequest) -> HttpResponse:
    """Requests that guards refused, by model and by who asked; customers whose calls look like copying."""
    return render(request, "web/guard_events.html", {"events": oversight.guard_events()})


@require_safe
@operators_only
def evaluations(request: HttpRequest) -> HttpResponse:
    """Evaluations that wait or run, and those that failed."""
    context = {
        "open": oversight.evaluation_runs(open_only=True)[:MOST_RUNS],
        "failed": oversight.evaluation_runs(open_only=False)[:MOST_RUNS],
    }
    return render(request, "web/platform_evaluations.html", context)
