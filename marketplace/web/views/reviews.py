"""The staff's pages of the queue; a creator's appeal; a customer's report."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import User
from marketplace.catalog import selectors as catalog
from marketplace.publishing import selectors
from marketplace.publishing import services as publishing
from marketplace.publishing.models import Review
from marketplace.publishing.policies import sentences
from marketplace.web import queries
from marketplace.web.acting import Acting, member_page
from marketplace.web.cards import render_card
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.review_forms import AppealForm, PullForm, RefusalForm, ReportForm
from marketplace.web.views.staff import operators_only

MOST_QUEUED = 100
MOST_DECIDED = 30
HOUR = 3600


@require_safe
@operators_only
def queue(request: HttpRequest) -> HttpResponse:
    """Show the queue, the least time left first, and the last decisions."""
    now = timezone.now()
    waiting = [(review, sentences(review), _left(review, now)) for review in selectors.queue()[:MOST_QUEUED]]
    context = {
        "waiting": waiting,
        "overdue": sum(hours < 0 for _, _, hours in waiting),
        "decided": selectors.decided()[:MOST_DECIDED],
    }
    return render(request, "web/reviews.html", context)


@require_safe
@operators_only
def review(request: HttpRequest, review_id: UUID) -> HttpResponse:
    """One review: the reasons, what the replica reported, the listing as customers would see it, and the decision."""
    return _review_page(request, _found(review_id), RefusalForm(), status=200)


@require_POST
@operators_only
def decide(request: HttpRequest, review_id: UUID, action: str) -> HttpResponse:
    """Approve, refuse, or take off sale until it is decided."""
    found = _found(review_id)
    assert isinstance(request.user, User)  # operators_only
    form = _form_of(action, request.POST)
    if form is not None and not form.is_valid():
        refusal = form if isinstance(form, RefusalForm) else RefusalForm()
        return _review_page(request, found, refusal, pull_form=form if isinstance(form, PullForm) else None, status=400)
    try:
        if action == "approve":
            publishing.approve_review(review=found, user=request.user, seen=request.POST.get("seen", ""))
            messages.success(request, f"Approved: {found.model.full_name}.")
        elif action == "pull":
            assert form is not None
            publishing.pull_from_sale(review=found, user=request.user, reason=form.cleaned_data["reason"])
            messages.success(request, f"{found.model.full_name} is off sale until you decide.")
            return redirect("web:review", review_id=review_id)
        else:
            assert form is not None
            data = form.cleaned_data
            publishing.refuse_review(review=found, user=request.user, reason=data["reason"], strike=data["strike"])
            messages.success(request, f"Refused: {found.model.full_name}. Its creator is told why.")
    except Refusal as refused:
        show_as_message(request, refused, prefix="Nothing changed.")
        return redirect("web:review", review_id=review_id)
    return redirect("web:reviews")


@require_POST
@member_page("publish")
def appeal(request: HttpRequest, acting: Acting, review_id: UUID) -> HttpResponse:
    """Appeal a refusal, once."""
    found = selectors.own_review(organization=acting.organization, review_id=review_id)
    if found is None:
        raise Http404("no such review")
    form = AppealForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing was sent: say why the refusal is wrong, in at most 1,000 characters.")
    else:
        try:
            publishing.appeal_review(review=found, text=form.cleaned_data["text"], by=acting.user.pk)
            messages.success(request, f"A person answers your appeal by {found.due_at:%a %-d %b, %H:%M} UTC.")
        except Refusal as refused:
            show_as_message(request, refused, prefix="Nothing was sent.")
    return redirect("web:my_model", slug=found.model.slug)


@require_POST
@member_page()
def report(request: HttpRequest, acting: Acting, org: str, slug: str) -> HttpResponse:
    """Report a model, in the name of the organization: whoever only reads does not speak for it."""
    if acting.scopes <= {"read"}:
        return render(request, "web/role_lacks.html", {"acting": acting, "scope": "predict"}, status=403)
    model = catalog.visible_model(org_slug=org, slug=slug, viewer=acting.organization)
    if model is None:
        raise Http404("no such model")
    form = ReportForm(request.POST)
    if form.is_valid():
        try:
            publishing.report_model(
                model=model, organization=acting.organization, by=acting.user.pk, **form.cleaned_data
            )
        except Refusal as refused:
            show_in_form(form, refused)
        else:
            messages.success(request, "Thank you. The platform's staff see your report.")
            return redirect("web:model", org=org, slug=slug)
    for errors in form.errors.values():
        messages.error(request, f"Nothing was sent. {' '.join(str(error) for error in errors)}")
    return redirect("web:model", org=org, slug=slug)


def _form_of(action: str, data: QueryDict) -> RefusalForm | PullForm | None:
    """Return the form of a decision that needs a reason."""
    if action == "refuse":
        return RefusalForm(data)
    return PullForm(data) if action == "pull" else None


def _found(review_id: UUID) -> Review:
    found = selectors.review_by_id(review_id)
    if found is None:
        raise Http404("no such review")
    return found


def _left(review: Review, now: datetime) -> int:
    """Return the whole hours until the answer is due, below 0 once it is overdue."""
    return int((review.due_at - now).total_seconds() // HOUR)


def _review_page(
    request: HttpRequest, found: Review, form: RefusalForm, *, status: int, pull_form: PullForm | None = None
) -> HttpResponse:
    model = found.model
    for name, value in found.change.items():
        setattr(model, name, value)  # as it would be, unsaved
    context = {
        "review": found,
        "model": model,
        "hours_left": _left(found, timezone.now()),
        "reasons": sentences(found),
        "card": render_card(model.card_markdown, title=model.title),
        "record": selectors.record_of(model.organization),
        "reports": selectors.reports_of(found),
        "acts": queries.with_people(list(selectors.acts_of(found))),
        "seen": selectors.listing_digest(_found(found.pk).model),
        "on_sale": catalog.versions_of(model=model, published_only=True).exists(),
        "form": form,
        "pull_form": pull_form or PullForm(),
    }
    return render(request, "web/review.html", context, status=status)
