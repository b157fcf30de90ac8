"""A creator's page of one version: what is new, who gets it, and when it ends."""

from __future__ import annotations

from collections.abc import Callable

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from marketplace.accounts.errors import Refusal
from marketplace.catalog import selectors, services
from marketplace.catalog.models import Model, Version
from marketplace.evals.selectors import clearances_of
from marketplace.publishing import services as publishing
from marketplace.publishing.endings import earliest_end
from marketplace.publishing.selectors import review_of, with_reviews
from marketplace.watch.rollouts import compare
from marketplace.watch.selectors import customers_at_least, thumbs_of
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.refusals import show_as_message
from marketplace.web.version_forms import ChangelogForm, EndForm, RolloutForm

MOST_EARLIER = 10
MOST_EVALUATIONS = 20
# The creator's word about a version on a checkpoint: the act, its button, and the value that it sets.
LEAVES = (("give", "Serve it there", "given"), ("refuse", "Never there", "refused"), ("measured", "As measured", ""))
_ON_ITS_WAY = (Version.State.VERIFIED, Version.State.IN_REVIEW, Version.State.PUBLISHED)
_NEVER_CHANGED = (Version.State.PUBLISHED, Version.State.RETIRED, Version.State.REVOKED)


@require_safe
@never_cache
@member_page("publish")
def version(request: HttpRequest, acting: Acting, slug: str, number: int) -> HttpResponse:
    """One version, with what its creator can do about it."""
    model = own_model(acting, slug)
    return render(request, "web/version.html", _context(model, _own_version(model, number)))


@require_POST
@member_page("publish", fresh=True)
def act(request: HttpRequest, acting: Acting, slug: str, number: str, action: str) -> HttpResponse:
    """Change the changelog, roll the version out or back, make it the default, announce its end, or keep it."""
    model = own_model(acting, slug)
    found = _own_version(model, int(number))
    form = _form(action, model, found, request)
    if form is not None and not form.is_valid():
        return render(request, "web/version.html", _context(model, found, **{action: form}), status=400)
    try:
        messages.success(request, _ACTS[action](acting, found, form))
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    return redirect("web:version", slug=slug, number=int(number))


def _form(action: str, model: Model, found: Version, request: HttpRequest) -> forms.Form | None:
    if action == "changelog":
        return ChangelogForm(request.POST)
    if action == "rollout" and request.POST.get("percent") != "0":
        return RolloutForm(request.POST)
    return _end_form(model, found, request) if action == "end" else None


def _roll_out(acting: Acting, found: Version, form: forms.Form | None) -> str:
    percent = 0 if form is None else form.cleaned_data["percent"]
    rollout = publishing.roll_out(version=found, percent=percent, actor=acting.actor, by=acting.user.pk)
    found.refresh_from_db()
    if not percent:
        return f"Version {found.number} is taken back: every customer gets the default version."
    if found.state == Version.State.IN_REVIEW:
        return f"Version {found.number} is in review. It is rolled out as soon as it is approved."
    if rollout is None:
        return f"Version {found.number} is the default: every customer gets it."
    return f"{percent} % of the customers get version {found.number}, within a second."


def _make_default(acting: Acting, found: Version, _: forms.Form | None) -> str:
    services.make_default(version=found, actor=acting.actor)
    return f"Version {found.number} is the default: every customer gets it."


def _change_changelog(acting: Acting, found: Version, form: forms.Form | None) -> str:
    assert form is not None
    publishing.change_changelog(version=found, text=form.cleaned_data["changelog"], actor=acting.actor)
    return "The changelog is changed."


def _announce_end(acting: Acting, found: Version, form: forms.Form | None) -> str:
    assert isinstance(form, EndForm)
    number = form.cleaned_data["replacement"]
    replacement = None if number is None else _own_version(found.model, number)
    publishing.announce_end(version=found, ends_at=form.ends_at, replacement=replacement, actor=acting.actor)
    return f"The end of version {found.number} is announced: customers who called it lately are told."


def _keep(acting: Acting, found: Version, _: forms.Form | None) -> str:
    publishing.cancel_end(version=found, actor=acting.actor)
    return f"Version {found.number} stays. Whoever was told of its end is told."


_ACTS: dict[str, Callable[[Acting, Version, forms.Form | None], str]] = {
    "rollout": _roll_out,
    "default": _make_default,
    "changelog": _change_changelog,
    "end": _announce_end,
    "keep": _keep,
}


def _own_version(model: Model, number: int) -> Version:
    found = with_reviews(selectors.versions_of(model=model, published_only=False)).filter(number=number).first()
    if found is None or model.kind != Model.Kind.ADAPTER:
        raise Http404("no such version")
    return found


def _end_form(model: Model, found: Version, request: HttpRequest | None = None) -> EndForm:
    on_sale = selectors.versions_of(model=model, published_only=True).exclude(pk=found.pk)
    return EndForm(request.POST if request else None, earliest=earliest_end(found), others=list(on_sale[:50]))


def _context(model: Model, found: Version, **asked: forms.Form) -> dict[str, object]:
    default, rollout = selectors.default_version(model=model), selectors.open_rollout(model=model)
    own = rollout if rollout is not None and rollout.version_id == found.pk else None
    is_on_sale = found.state == Version.State.PUBLISHED
    percent = {"percent": 5 if own is None else min(2 * own.percent, 100)}
    return {
        "model": model,
        "version": found,
        "review": review_of(found),
        "default": default,
        "is_default": found == default,
        "rollout": rollout,
        "own_rollout": own,
        "sides": () if own is None or not is_on_sale else compare(own),
        "earlier": selectors.rollouts_of(model=model).exclude(ended_at=None)[:MOST_EARLIER],
        "may_roll_out": found.state in _ON_ITS_WAY and default not in (None, found),
        "may_make_default": is_on_sale and found != default,
        "may_change_words": found.published_at is None and found.state not in _NEVER_CHANGED,
        "evaluations": selectors.evaluations_of(model=model).filter(version=found)[:MOST_EVALUATIONS],
        "clearances": clearances_of(model=model, owner=True).filter(version=found),
        "leaves": LEAVES,
        "thumbs": thumbs_of(found),
        "customers": customers_at_least([found.pk], creator_id=model.organization_id),
        "changelog_form": asked.get("changelog") or ChangelogForm({"changelog": found.changelog}),
        "rollout_form": asked.get("rollout") or RolloutForm(initial=percent),
        "end_form": (asked.get("end") or _end_form(model, found)) if is_on_sale else None,
    }
