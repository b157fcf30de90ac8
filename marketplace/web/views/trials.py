"""Blind comparisons: start one, watch it, judge its pairs, stop it."""

from __future__ import annotations

import math
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from marketplace.accounts.errors import Refusal
from marketplace.trials import selectors, services
from marketplace.trials.models import Trial
from marketplace.web.acting import Acting, member_page
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.trial_chart import build_way_chart
from marketplace.web.trial_forms import TrialForm

PAGE_SIZE = 20


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("predict")
def trials(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Every run of the organization, and a form for the next."""
    form = TrialForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        try:
            trial = services.start_trial(organization=acting.organization, created_by=acting.user, **form.terms())
        except Refusal as refusal:
            show_in_form(form, refusal, field_names=form.FIELD_NAMES)
        else:
            return redirect("web:trial", trial_id=trial.pk)
    page = Paginator(selectors.trials_of(acting.organization), PAGE_SIZE).get_page(request.GET.get("page"))
    context = {"page": page, "form": form}
    return render(request, "web/trials.html", context, status=400 if request.method == "POST" else 200)


@require_safe
@never_cache
@member_page("predict")
def trial(request: HttpRequest, acting: Acting, trial_id: UUID) -> HttpResponse:
    """One run; while it goes on, no part of the page ties a model to a side."""
    return render(request, "web/trial.html", _context(_owned(acting, trial_id)))


@require_safe
@never_cache
@member_page("predict")
def progress(request: HttpRequest, acting: Acting, trial_id: UUID) -> HttpResponse:
    """The live part of the page alone, for htmx."""
    return render(request, "web/parts/trial_progress.html", _context(_owned(acting, trial_id)))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("predict")
def judge(request: HttpRequest, acting: Acting, trial_id: UUID) -> HttpResponse:
    """The pair to judge next; POST judges one."""
    row = _owned(acting, trial_id)
    if request.method == "POST":
        try:
            services.judge_row(trial=row, row_id=_row_id(request), choice=request.POST.get("choice", ""))
        except Refusal as refusal:
            if not request.headers.get("HX-Request"):
                show_as_message(request, refusal, prefix="Nothing was judged.")
        row = _owned(acting, trial_id)
        if not request.headers.get("HX-Request"):
            return redirect("web:trial", trial_id=trial_id)
    return render(request, "web/parts/trial_judge.html", _context(row))


@require_POST
@member_page("predict")
def cancel(request: HttpRequest, acting: Acting, trial_id: UUID) -> HttpResponse:
    """Stop a run."""
    services.cancel_trial(trial=_owned(acting, trial_id))
    return redirect("web:trial", trial_id=trial_id)


@require_POST
@member_page("predict")
def delete_rows(request: HttpRequest, acting: Acting, trial_id: UUID) -> HttpResponse:
    """Delete the rows of a run now."""
    services.delete_rows(trial=_owned(acting, trial_id))
    messages.success(request, "The rows and answers are deleted. The result stays.")
    return redirect("web:trial", trial_id=trial_id)


def _owned(acting: Acting, trial_id: UUID) -> Trial:
    found = selectors.trial_of(acting.organization, trial_id)
    if found is None:
        raise Http404("no such comparison")
    return found


def _context(row: Trial) -> dict[str, object]:
    found = selectors.progress_of(row)
    spent = min(100, 100 * found.cost_nano_usd // row.budget_nano_usd)
    return {
        "trial": row,
        "progress": found,
        "models": sorted((row.first, row.second)),  # in no order that tells a side
        "chart": build_way_chart(found.steps),
        "e_value": _e_value(found.last.log_e if found.last else 0.0),
        "rest": _rest(found.seconds_left or 0),
        "rows_percent": 100 * found.rows_done // row.rows_count,
        "budget_percent": spent,
        "pair": selectors.next_pair(row),
        "judged_by_you": row.scoring == Trial.Scoring.JUDGE,
    }


def _e_value(log_e: float) -> str:
    return f"{math.exp(min(log_e, 12.0)):.3g}"


def _rest(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def _row_id(request: HttpRequest) -> UUID:
    try:
        return UUID(request.POST.get("row", ""))
    except ValueError:
        raise Http404("no such row") from None
