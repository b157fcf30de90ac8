"""The feed of an organization's alerts, and which kinds are muted."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from marketplace.alerts import selectors, services
from marketplace.alerts.kinds import kind_of
from marketplace.web.acting import Acting, member_page

PAGE_SIZE = 30


@require_safe
@never_cache
@member_page()
def alerts(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Show the organization's alerts, newest first; the member has then read them."""
    organization, scopes = acting.organization, acting.scopes
    unread = selectors.unread_of(organization, acting.user, scopes)
    page = Paginator(selectors.feed_of(organization, scopes), PAGE_SIZE).get_page(request.GET.get("page"))
    rows = [(alert, kind_of(alert.kind), number < unread) for number, alert in enumerate(page, page.start_index() - 1)]
    if request.method == "GET" and unread and page.number == 1:
        services.mark_seen(organization=organization, user=acting.user, alert_id=page[0].pk)
    context = {"rows": rows, "page": page, "kinds": selectors.kinds_of(organization, scopes)}
    return render(request, "web/alerts.html", context)


@require_POST
@member_page()
def mute_kind(request: HttpRequest, acting: Acting, kind: str) -> HttpResponse:
    """Mail and post alerts of a kind no more, or again."""
    if kind not in {line.kind.name for line in selectors.kinds_of(acting.organization, acting.scopes)}:
        raise Http404("no such kind of alert")
    change = services.mute_kind if request.POST.get("muted") == "1" else services.unmute_kind
    change(organization=acting.organization, kind=kind)
    return redirect("web:alerts")
