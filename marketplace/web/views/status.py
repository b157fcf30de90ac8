"""The public status page, as HTML, JSON and an Atom feed, and the page on which staff write it."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.feedgenerator import Atom1Feed
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from marketplace.accounts.errors import Refusal
from marketplace.operations.incidents import add_update, post_incident
from marketplace.operations.models import Incident
from marketplace.operations.shapes import status_fields
from marketplace.operations.status import failed_probes, feed_incidents
from marketplace.operations.status import status as status_now
from marketplace.web.operator_forms import IncidentForm, UpdateForm
from marketplace.web.refusals import show_in_form
from marketplace.web.views.staff import operators_only, staff_of

SECONDS = 15  # for which a cache may answer


@require_safe
@cache_control(public=True, max_age=SECONDS)
def status_json(request: HttpRequest) -> HttpResponse:
    """The page for programs."""
    return JsonResponse(status_fields(status_now()))


@require_safe
def status(request: HttpRequest) -> HttpResponse:
    """Show each part of the platform as it does now, and did for 90 days."""
    return render(request, "web/status.html", {"status": status_now()})


@require_safe
@cache_control(public=True, max_age=SECONDS)
def status_feed(request: HttpRequest) -> HttpResponse:
    """Every incident with its messages, for readers of feeds."""
    page = settings.PUBLIC_URL + reverse("web:status")
    feed = Atom1Feed(
        title="Intarsia status",
        link=page,
        description="Incidents and planned work",
        feed_url=settings.PUBLIC_URL + reverse("web:status_feed"),
    )
    for incident in feed_incidents():
        updates = list(incident.updates.all())
        feed.add_item(
            title=f"{incident.title} ({incident.get_kind_display()})",
            link=f"{page}#incident-{incident.pk}",
            unique_id=f"{page}#incident-{incident.pk}",
            description="\n\n".join(f"{one.get_state_display()}: {one.text}" for one in updates),
            pubdate=incident.starts_at,
            updateddate=updates[0].created_at if updates else incident.starts_at,
        )
    return HttpResponse(feed.writeString("utf-8"), content_type="application/atom+xml; charset=utf-8")


@require_http_methods(["GET", "HEAD", "POST"])
@operators_only
def post_status(request: HttpRequest) -> HttpResponse:
    """Open incidents and planned work, a form for another, and the probes that failed."""
    form = IncidentForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            post_incident(
                by=staff_of(request),
                kind=data["kind"],
                title=data["title"],
                components=data["components"],
                text=data["text"],
                **form.moments,
            )
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, "It is on the status page.")
            return redirect("web:post_status")
    context = {
        "form": form,
        "open": [(one, UpdateForm()) for one in feed_incidents() if one.resolved_at is None],
        "probes": failed_probes()[:50],
    }
    return render(request, "web/post_status.html", context, status=400 if request.method == "POST" else 200)


@require_POST
@operators_only
def update_status(request: HttpRequest, incident_id: int) -> HttpResponse:
    """Say more about an incident, or that it is over."""
    if not Incident.objects.filter(pk=incident_id).exists():
        raise Http404("no such incident")
    form = UpdateForm(request.POST)
    if form.is_valid():
        try:
            add_update(by=staff_of(request), incident_id=incident_id, **form.cleaned_data)
        except Refusal as refusal:
            messages.error(request, f"Nothing was posted. {refusal.message}")
        else:
            messages.success(request, "The message is on the status page.")
    else:
        messages.error(request, "Nothing was posted: write a message of at most 2,000 characters.")
    return redirect("web:post_status")
