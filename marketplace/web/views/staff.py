"""The operator's overview, which other users do not find."""

from __future__ import annotations

from datetime import timedelta

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from billing import selectors as billing
from marketplace.accounts.policies import is_operator
from marketplace.vault.selectors import LIVE_SECONDS
from marketplace.web import queries


@require_safe
@never_cache
@login_required
def platform(request: HttpRequest) -> HttpResponse:
    """Money, replicas and open incidents."""
    if not request.user.is_authenticated or not is_operator(user=request.user, key_organization_slug=None):
        raise Http404("no such page")
    alive_since = timezone.now() - timedelta(seconds=LIVE_SECONDS)
    context = {
        "summary": billing.platform_summary(),
        "replicas": [(replica, replica.last_seen_at >= alive_since) for replica in queries.recent_replicas()],
        "incidents": queries.open_incidents(),
    }
    return render(request, "web/platform.html", context)
