"""The staff's page of the fleet: replicas with what they hold and do; drain, revoke, and allow another one."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST

from marketplace.accounts.errors import Refusal
from marketplace.operations import replicas
from marketplace.operations.fleet import adapters_of
from marketplace.operations.fleet import fleet as lines_of_fleet
from marketplace.operations.fleet_events import fleet_events
from marketplace.operations.pools import pools
from marketplace.web.operator_forms import ReplicaForm
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.views.staff import operators_only, staff_of

MAX_NAME = 200  # of a model that is looked for


@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_variables("credential")
@operators_only
def fleet(request: HttpRequest) -> HttpResponse:
    """Pools, replicas and events; POST allows another replica. Its credential is in this one answer alone."""
    form = ReplicaForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            credential = replicas.allow(
                name=data["name"],
                base=data["base"],
                host=data["host"],
                by=staff_of(request),
                builds=data["builds"].split(),
                releases_per_hour=data["releases_per_hour"],
            )
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            return render(
                request, "web/replica_allowed.html", {"name": data["name"], "credential": credential}, status=201
            )
    asked = request.GET.get("model", "").strip()[:MAX_NAME]
    context = {
        "lines": lines_of_fleet(),
        "pools": pools(),
        "events": fleet_events(),
        "asked_model": asked,
        "adapters": adapters_of(asked) if asked else None,
        "form": form,
    }
    return render(request, "web/fleet.html", context, status=400 if request.method == "POST" else 200)


@require_POST
@operators_only
def change_replica(request: HttpRequest, name: str, action: str) -> HttpResponse:
    """Drain a replica, send it work again, or end it."""
    by = staff_of(request)
    try:
        if action == "drain":
            replicas.drain(name=name, by=by)
            messages.success(request, f"{name} gets no new work. What runs there ends as ever.")
        elif action == "undrain":
            replicas.undrain(name=name, by=by)
            messages.success(request, f"{name} gets work again.")
        else:
            ended = replicas.revoke(name=name, by=by)
            messages.success(request, f"{name} is revoked; {ended} leases ended.")
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    return redirect("web:fleet")
