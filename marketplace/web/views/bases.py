"""Base lines and versions on checkpoints: the staff's page, and the creator's word about one."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from marketplace.accounts.errors import Refusal
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Clearance, Model
from marketplace.evals import selectors
from marketplace.evals.clearances import set_leave
from marketplace.operations import bases as operations
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.refusals import show_as_message
from marketplace.web.views.staff import operators_only, staff_of

PER_PAGE = 50
_LEAVES = {"give": Clearance.Leave.GIVEN, "refuse": Clearance.Leave.REFUSED, "measured": Clearance.Leave.NONE}


@require_safe
@operators_only
def bases(request: HttpRequest) -> HttpResponse:
    """Every base line with its checkpoints and replicas, and each version on each checkpoint."""
    state = request.GET.get("state", "")
    wanted = state if state in Clearance.State.values else ""
    rows = Paginator(selectors.clearances(state=wanted), PER_PAGE).get_page(request.GET.get("page"))
    context = {"lines": operations.lines(), "page": rows, "state": wanted, "states": Clearance.State.values}
    return render(request, "web/bases.html", context)


@require_POST
@operators_only
def measure_again(request: HttpRequest, clearance_id: UUID) -> HttpResponse:
    """Measure a version on a checkpoint anew."""
    try:
        found = operations.measure_once_more(clearance_id=clearance_id, by=staff_of(request))
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    else:
        name = f"{found.version.model.full_name}@{found.version.number}"
        messages.success(
            request, f"{name} is measured on {found.checkpoint.name} again, as soon as replicas are there."
        )
    return redirect("web:bases")


@require_POST
@member_page("publish", fresh=True)
def leave(request: HttpRequest, acting: Acting, slug: str, number: str, action: str) -> HttpResponse:
    """Let a version be served on a checkpoint whatever was measured, never, or as the measurement says."""
    model = own_model(acting, slug)
    version = catalog.versions_of(model=model, published_only=False).filter(number=int(number)).first()
    if version is None or model.kind != Model.Kind.ADAPTER:
        raise Http404("no such version")
    found = selectors.clearance_of(version=version, checkpoint=request.POST.get("checkpoint", "")[:100])
    if found is None:
        messages.error(request, "Nothing changed: there is no such checkpoint.")
    else:
        said = set_leave(clearance=found, leave=_LEAVES[action], actor=acting.actor)
        served = "is served" if said.is_cleared else "is not served"
        messages.success(request, f"Version {version.number} {served} on {said.checkpoint.name}.")
    return redirect("web:version", slug=slug, number=int(number))
