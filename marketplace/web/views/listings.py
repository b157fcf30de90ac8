"""A creator's words about a model: written, looked at beforehand, saved through the gate."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from marketplace.accounts.errors import Conflict, Refusal
from marketplace.catalog import selectors
from marketplace.catalog.models import Model
from marketplace.catalog.services.listings import ListingText
from marketplace.publishing import services as publishing
from marketplace.publishing.changes import Change, changes_since
from marketplace.publishing.models import Review
from marketplace.publishing.selectors import latest_listing_review
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.cards import render_card
from marketplace.web.listing_forms import ListingForm, NewListingForm
from marketplace.web.logo_form import LogoForm
from marketplace.web.refusals import show_in_form

MOST_BASES = 100
_SAVED = "Saved. The page of the model says it now."
_WAITS = "A person looks at {names} first, within one working day. The rest is saved."


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("publish")
def listing(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Show the words of one model to edit; POST saves them, or shows the card if the button says so."""
    model = own_model(acting, slug)
    form = ListingForm(request.POST or None, initial=ListingForm.initial_of(model))
    if request.method != "POST":
        return _page(request, model, form)
    if "preview" in request.POST:
        return _page(request, model, form)
    if not form.is_valid():
        return _page(request, model, form, status=400)
    try:
        review = publishing.change_listing(
            model=model,
            text=form.text,
            by=acting.user.pk,
            actor=acting.actor,
            seen=form.cleaned_data["seen"],
        )
    except Conflict as conflict:
        if conflict.code != "listing_changed":
            show_in_form(form, conflict, field_names=form.FIELD_NAMES)
            return _page(request, model, form, status=409)
        return _changed_meanwhile(request, acting, model, form)
    except Refusal as refusal:
        show_in_form(form, refusal, field_names=form.FIELD_NAMES)
        return _page(request, own_model(acting, slug), form, status=400)
    _tell(request, review)
    return redirect("web:listing", slug=slug)


@require_POST
@never_cache
@member_page("publish")
def preview_card(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Show the card as the page of the model would, for htmx; nothing is saved."""
    model = own_model(acting, slug)
    return render(request, "web/parts/card_preview.html", _preview(request.POST.get("card_markdown", ""), model))


@require_POST
@member_page("publish")
def logo(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Show another picture with the model, or none."""
    model = own_model(acting, slug)
    form = LogoForm(request.POST, request.FILES)
    file: bytes | None = None
    if "remove" not in request.POST:
        if not form.is_valid():
            return _page(request, model, None, logo_form=form, status=400)
        file = form.cleaned_data["logo"]
    try:
        _tell(request, publishing.set_logo(model=model, file=file, by=acting.user.pk, actor=acting.actor))
    except Refusal as refusal:
        show_in_form(form, refusal)
        return _page(request, own_model(acting, slug), None, logo_form=form, status=400)
    return redirect("web:listing", slug=slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("publish")
def new_listing(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Begin a listing; its versions are pushed by the command."""
    bases = list(selectors.bases()[:MOST_BASES])
    form = NewListingForm(request.POST or None, bases=bases)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            model = publishing.create_listing(
                organization=acting.organization,
                slug=data["slug"],
                base_model=selectors.chosen_base(data["base"]),
                text=ListingText(title=data["title"], visibility=data["visibility"]),
                actor=acting.actor,
            )
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, f"{model.full_name} is there. Nobody finds it until a version is published.")
            return redirect("web:listing", slug=model.slug)
    status = 400 if request.method == "POST" else 200
    return render(request, "web/new_listing.html", {"form": form, "bases": bases}, status=status)


def _page(
    request: HttpRequest,
    model: Model,
    form: ListingForm | None,
    *,
    status: int = 200,
    logo_form: LogoForm | None = None,
    **context: Any,
) -> HttpResponse:
    form = form or ListingForm(initial=ListingForm.initial_of(model))
    card = form["card_markdown"].value() or ""
    context |= {
        "model": model,
        "form": form,
        "logo_form": logo_form or LogoForm(),
        "logo_url": selectors.logo_url(model),
        "listing_review": latest_listing_review(model),
        "contract": model.facts.newest.contract if model.facts.newest else None,
        "version": model.facts.newest,
        "is_adapter": model.kind == Model.Kind.ADAPTER,
        **_preview(card, model),
    }
    return render(request, "web/listing.html", context, status=status)


def _changed_meanwhile(request: HttpRequest, acting: Acting, model: Model, form: ListingForm) -> HttpResponse:
    """Show the person's own text again beside what others saved; saving it again puts it in the place of theirs."""
    now = own_model(acting, model.slug)
    changes = changes_since(now, form.cleaned_data["seen"])
    again = request.POST.copy()
    again["seen"] = now.updated_at.isoformat()
    form.data = again
    return _page(request, now, form, status=409, changes=changes, differences=_differences(now, form, changes))


def _differences(model: Model, form: ListingForm, changes: list[Change]) -> list[tuple[str, str]]:
    """Return the label and the saved value of each field that others changed and that the form says otherwise."""
    saved = ListingForm.initial_of(model)
    names = {name for change in changes for name in change.fields} & saved.keys()
    return [
        (str(form[name].label), str(saved[name]))
        for name in form.fields
        if name in names and str(form[name].value() or "") != str(saved[name] or "")
    ]


def _preview(card: str, model: Model) -> dict[str, Any]:
    return {"preview": render_card(card[:100_000], title=model.title)}


def _tell(request: HttpRequest, review: Review | None) -> None:
    if review is None:
        messages.success(request, _SAVED)
    else:
        names = ", ".join(name.replace("_", " ") for name in review.change)
        messages.warning(request, _WAITS.format(names=names))
