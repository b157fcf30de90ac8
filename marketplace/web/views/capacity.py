"""Plans of the fleet: what the newest one says, what happened to the one before, and the files they are made from."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from marketplace.accounts.errors import Refusal
from marketplace.planning import selectors, services
from marketplace.planning.documents import PlanDocument, plan_document, review_document
from marketplace.planning.errors import NotMade
from marketplace.planning.fleet_now import fleet_now
from marketplace.planning.measured import measured_hours
from marketplace.planning.models import Plan, PlanFile
from marketplace.planning.usage import usage_file
from marketplace.web.fleet_chart import FleetChart, fleet_chart
from marketplace.web.plan_file_form import PlanFileForm
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.views.staff import operators_only, staff_of

PER_PAGE = 20


@require_http_methods(["GET", "HEAD", "POST"])
@operators_only
def capacity(request: HttpRequest) -> HttpResponse:
    """Show the newest plan, the fleet that runs against it, files and earlier plans; POST asks for another plan."""
    if request.method != "POST":
        return _page(request, PlanFileForm())
    try:
        services.ask_for_plan(by=staff_of(request))
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    else:
        messages.success(request, "A plan is asked for. It takes some minutes; this page shows it then.")
    return redirect("web:capacity")


@require_POST
@operators_only
def capacity_files(request: HttpRequest) -> HttpResponse:
    """Keep a file for the plans from now on."""
    form = PlanFileForm(request.POST, request.FILES)
    if form.is_valid():
        data = form.cleaned_data
        try:
            kept = services.add_file(
                kind=data["kind"], subject=data["subject"], content=data["file"], by=staff_of(request)
            )
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, f"Kept: {kept.name}. The next plan is made from it.")
            return redirect("web:capacity")
    return _page(request, form, status=400)


@require_safe
@operators_only
def capacity_plan(request: HttpRequest, plan_id: UUID) -> HttpResponse:
    """Show one plan, whatever became of it."""
    plan = Plan.objects.filter(pk=plan_id).first()
    if plan is None:
        raise Http404("no such plan")
    return render(request, "web/capacity_plan.html", shown(plan))


@require_safe
@operators_only
def capacity_usage(request: HttpRequest) -> HttpResponse:
    """Download the usage file that a plan of this hour would be made from."""
    return _file(usage_file(), "usage.json")


@require_safe
@operators_only
def capacity_targets(request: HttpRequest) -> HttpResponse:
    """Download what the newest plan tells the autoscaler."""
    plan = selectors.newest_made()
    if plan is None or plan.result is None:
        raise Http404("no plan was made")
    return _file(plan.result["targets"], "targets.json")


def shown(plan: Plan | None) -> dict[str, Any]:
    """Return a plan as the template shows it. unreadable: another version made it"""
    context: dict[str, Any] = {"plan": plan, "document": None, "review": None, "unreadable": ""}
    if plan is None or plan.result is None:
        return context
    try:
        context["document"] = plan_document(plan.result)
        context["review"] = review_document(plan.review) if plan.review is not None else None
    except NotMade as error:
        context["unreadable"] = str(error)
    return context


def _page(request: HttpRequest, form: PlanFileForm, status: int = 200) -> HttpResponse:
    newest = shown(selectors.newest_made())
    document = newest["document"]
    context = {
        **newest,
        "now": fleet_now(document) if document else [],
        "charts": _charts(document) if document else [],
        "unfinished": selectors.unfinished(),
        "missing": services.missing_files(),
        "files": services.newest_files(),
        "page": Paginator(selectors.plans(), PER_PAGE).get_page(request.GET.get("page")),
        "form": form,
        "kinds": PlanFile.Kind,
    }
    return render(request, "web/capacity.html", context, status=status)


def _charts(document: PlanDocument) -> list[FleetChart]:
    hours = measured_hours([one.base for one in document.promised])
    drawn = [fleet_chart(one, hours.get(one.base, [])) for one in document.promised]
    return [one for one in drawn if one is not None]


def _file(content: Any, name: str) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return HttpResponse(json.dumps(content, indent=1), content_type="application/json", headers=headers)
