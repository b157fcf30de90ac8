"""The operator's overview, which other users do not find."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from billing import selectors as billing
from billing.disputes.selectors import open_disputes, takes_evidence
from billing.papers.csv_file import csv_file
from billing.papers.download import download
from billing.papers.pdf import pdf_file
from billing.papers.statements import platform_statement
from marketplace.accounts import audit
from marketplace.accounts.models import User
from marketplace.accounts.policies import is_operator, is_staff
from marketplace.catalog.search.status import status as search_status
from marketplace.operations.platform_profile import platform_profile
from marketplace.publishing.selectors import queue
from marketplace.vault.selectors import LIVE_SECONDS
from marketplace.web import queries
from marketplace.web.acting import require_fresh
from marketplace.web.views.statements import parse_month


def operators_only(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate a page of the operator's: a stranger signs in, and everybody else finds nothing here.

    Staff without a second factor are sent to set one up; a form asks for a proof again, as `member_page(fresh=True)`.
    """

    @never_cache
    @login_required
    @wraps(view)
    def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated or not is_staff(user=request.user):
            raise Http404("no such page")
        if not is_operator(user=request.user, key_organization_slug=None):
            messages.warning(request, "The platform's pages open once you have a second factor: set one up here.")
            return redirect("web:security")
        asked = require_fresh(request)
        if asked is not None:
            return asked
        with audit.acting(audit.Actor(user=request.user, as_staff=True)):
            return view(request, *args, **kwargs)

    return inner


def staff_of(request: HttpRequest) -> User:
    """Return the member of staff whom `operators_only` let through."""
    assert isinstance(request.user, User), "operators_only"
    return request.user


@require_safe
@operators_only
def platform(request: HttpRequest) -> HttpResponse:
    """Money, replicas, search and open incidents."""
    alive_since = timezone.now() - timedelta(seconds=LIVE_SECONDS)
    context = {
        "summary": billing.platform_summary(),
        "replicas": [(replica, replica.last_seen_at >= alive_since) for replica in queries.recent_replicas()],
        "incidents": queries.open_incidents(),
        "unanswered": [row for row in open_disputes() if takes_evidence(row)],
        "waiting_reviews": queue().count(),
        "search": search_status(),
        "has_profile": platform_profile() is not None,
        "month": timezone.now().date(),
    }
    return render(request, "web/platform.html", context)


@require_safe
@operators_only
def platform_statement_file(request: HttpRequest, month: str, extension: str) -> HttpResponse:
    """A month of the whole platform as PDF or CSV: balances, movements by kind, tax."""
    first = parse_month(month)
    document = platform_statement(first)
    print_as = pdf_file if extension == "pdf" else csv_file
    return download(print_as(document, number="", issued_on=None), f"platform-{first:%Y-%m}.{extension}")
