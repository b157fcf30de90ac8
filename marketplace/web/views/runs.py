"""Runs: the list, one run as a waterfall of its calls, and its end by hand."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from billing.budgets.runs import selectors, services
from billing.budgets.runs.records import RunState
from billing.models import Run
from marketplace.receipts.run_calls import calls_in
from marketplace.web.acting import Acting, member_page
from marketplace.web.run_chart import build_waterfall

PAGE_SIZE = 20
CALLS_PER_PAGE = 50


@require_safe
@never_cache
@member_page("read")
def runs(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Every run of the organization, newest first."""
    found = selectors.runs_of(acting.organization).order_by("-created_at", "-pk")
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "web/runs.html", {"page": page, "runs": [RunState.of(run) for run in page]})


@require_safe
@never_cache
@member_page("read")
def run(request: HttpRequest, acting: Acting, run_id: UUID) -> HttpResponse:
    """One run and its calls."""
    row = _owned(acting, run_id)
    page = Paginator(selectors.calls_of(row).order_by("created_at", "id"), CALLS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    calls = calls_in(list(page))
    chart = build_waterfall(calls, now=timezone.now())
    return render(request, "web/run.html", {"run": RunState.of(row), "page": page, "calls": calls, "chart": chart})


@require_POST
@member_page("account")
def close(request: HttpRequest, acting: Acting, run_id: UUID) -> HttpResponse:
    """Let a run take no further call."""
    services.close_run(run=_owned(acting, run_id), actor=acting.actor)
    messages.success(request, "The run is closed. Calls in flight end as they would.")
    return redirect("web:run", run_id=run_id)


def _owned(acting: Acting, run_id: UUID) -> Run:
    found = selectors.run_of(acting.organization, run_id)
    if found is None:
        raise Http404("no such run")
    return found
