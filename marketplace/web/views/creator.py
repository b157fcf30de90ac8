"""The creator's pages: models, versions, prices, custody."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from marketplace.accounts.errors import Refusal
from marketplace.catalog import copying, selectors, services
from marketplace.catalog.call_price import call_to_copy, cost_of_copy
from marketplace.catalog.models import Model, Version
from marketplace.promises.selectors import promises_of
from marketplace.publishing import services as publishing
from marketplace.publishing.policies import sentences
from marketplace.publishing.selectors import latest_listing_review, review_of, with_reviews
from marketplace.vault import selectors as vault
from marketplace.vault.errors import NotBootstrapped
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.cli_wheel import wheel_name
from marketplace.web.forms import PromiseForm, RevokeForm, RoyaltyForm
from marketplace.web.guard_forms import GuardsForm
from marketplace.web.guards_context import guards_context
from marketplace.web.onboarding import Checklist, checklist_of
from marketplace.web.price_form import PriceForm, price_initial
from marketplace.web.promise_chart import promise_views
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.snippets import build_custody_commands
from marketplace.web.views.attack_guards import attack_guard_context

PAGE_SIZE = 50
CUSTODY_ROWS = 200
PRICE_ROWS = 50


@require_safe
@never_cache
@member_page("read")
def my_models(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Every model of the organization, drafts too."""
    found = selectors.models_of(organization=acting.organization)
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "rows": [(model, model.facts) for model in page],
        "checklist": checklist_for(acting),
        "referral_link": f"{settings.PUBLIC_URL}{reverse('account_signup')}?ref={acting.organization.slug}",
        "referral_bps": min(settings.ENV.referral_bps, settings.ENV.platform_fee_bps),
        "page": page,
    }
    return render(request, "web/my_models.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("publish", fresh=True)
def my_model(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Versions and price of one model; POST sets a new price."""
    model = own_model(acting, slug)
    form = _price_form(model, request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            price = services.set_price(model=model, **form.amounts())
        except Refusal as refusal:
            show_in_form(form, refusal, field_names=form.FIELD_NAMES)
        else:
            start = f"{price.effective_at:%-d %b %Y, %H:%M} UTC" if price.effective_at > timezone.now() else "now"
            messages.success(
                request, f"The new price holds from {start} on. Predictions keep the price that they started with."
            )
            return redirect("web:my_model", slug=slug)
    return _model_page(request, model, form, RevokeForm(), status=400 if request.method == "POST" else 200)


@require_POST
@member_page("publish", fresh=True)
def change_version(request: HttpRequest, acting: Acting, slug: str, number: str, action: str) -> HttpResponse:
    """Publish, retire or revoke one version."""
    model = own_model(acting, slug)
    version = selectors.versions_of(model=model, published_only=False).filter(number=int(number)).first()
    if version is None or model.kind != Model.Kind.ADAPTER:
        raise Http404("no such version")
    try:
        if action == "publish":
            publishing.publish_version(version=version, by=acting.user.pk)
            messages.success(request, _published(version))
        elif action == "retire":
            publishing.retire_version(version=version, by=acting.user.pk)
            messages.success(request, f"Version {number} is retired. It takes no new predictions.")
        else:
            form = RevokeForm(request.POST)
            if not form.is_valid():
                messages.error(request, "Nothing was revoked: say why, in at most 500 characters.")
                return _model_page(request, model, None, form, status=400)
            publishing.revoke_version(version=version, reason=form.cleaned_data["reason"], by=acting.user.pk)
            messages.success(
                request,
                (
                    f"Version {number} takes no more predictions, and every replica is told to drop its weights. "
                    "The custody log shows which of them confirmed."
                ),
            )
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    return redirect("web:my_model", slug=slug)


@require_POST
@member_page("publish", fresh=True)
def royalties(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Say what derived models owe, and what this one is derived from."""
    model = own_model(acting, slug)
    form = _royalty_form(model, request.POST)
    if form.is_valid():
        try:
            with transaction.atomic():
                if form.sources:
                    services.derive_from(model=model, sources=form.sources)
                services.offer_derivation(model=model, royalty_bps=form.royalty_bps)
        except Refusal as refusal:
            show_in_form(form, refusal, field_names=form.FIELD_NAMES)
        else:
            messages.success(request, "Saved. Models that were derived before keep their terms.")
            return redirect("web:my_model", slug=slug)
    return _model_page(request, own_model(acting, slug), None, RevokeForm(), royalty_form=form, status=400)


@require_safe
@never_cache
@member_page("read")
def custody(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Every release of a key of this model: to which replica, for what, when, chained by hashes."""
    model = own_model(acting, slug)
    try:
        log = vault.custody(organization=acting.organization, model=model, limit=CUSTODY_ROWS)
    except NotBootstrapped:
        log = None  # a platform without keys has released none
    rows = [(row, datetime.fromtimestamp(row.released_at_us / 1e6, tz=UTC)) for row in log.releases] if log else []
    context = {
        "model": model,
        "log": log,
        "rows": rows,
        "limit": CUSTODY_ROWS,
        "now": timezone.now(),
        "commands": build_custody_commands(**_creator(acting), model_name=model.full_name),
    }
    return render(request, "web/custody.html", context)


@require_safe
@never_cache
@member_page("read")
def custody_export(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The organization's whole chain, to check offline."""
    try:
        chain = vault.export_chain(organization=acting.organization)
    except NotBootstrapped:
        raise Http404("there is no custody log yet") from None
    response = JsonResponse(chain, json_dumps_params={"indent": 1})
    response.headers["Content-Disposition"] = f'attachment; filename="custody-{acting.organization.slug}.json"'
    return response


def checklist_for(acting: Acting) -> Checklist | None:
    """Return the steps to a first sale for the person and the organization."""
    return checklist_of(
        organization=acting.organization,
        user=acting.user,
        site=settings.PUBLIC_URL,
        wheel=wheel_name(),
        may_account=acting.may_account,
    )


def _creator(acting: Acting) -> dict[str, str]:
    """Return what the printed commands name: this site, its wheel and the organization."""
    return {
        "site": settings.PUBLIC_URL,
        "wheel": wheel_name(),
        "organization": acting.organization.slug,
    }


def _model_page(
    request: HttpRequest,
    model: Model,
    price_form: PriceForm | None,
    revoke_form: RevokeForm,
    *,
    status: int,
    royalty_form: RoyaltyForm | None = None,
) -> HttpResponse:
    facts = model.facts
    versions = [
        (version, *(state in Version.NEXT_STATES[version.state] for state in _OFFERED_STEPS), review_of(version))
        for version in with_reviews(selectors.versions_of(model=model, published_only=False))[:100]
    ]
    context = {
        "model": model,
        "facts": facts,
        "versions": versions,
        "listing_review": latest_listing_review(model),
        "form": price_form or _price_form(model, None),
        "prices": selectors.prices_of(model=model)[:PRICE_ROWS],
        "copy_cost": cost_of_copy(facts.price, call_to_copy(model)) if facts.price else None,
        "cheap_copy_nano_usd": copying.CHEAP_COPY_NANO_USD,
        "flat_price_nano_usd": copying.flat_price_nano_usd(),
        "now": timezone.now(),
        "revoke_form": revoke_form,
        "royalty_form": royalty_form or _royalty_form(model, None),
        "promises": promise_views(promises_of(model=model)),
        "promise_form": PromiseForm(),
        "may_promise": bool(facts.newest and (facts.newest.contract or {}).get("output_schema")),
        "is_adapter": model.kind == Model.Kind.ADAPTER,
        "guards": guards_context("model", model.pk, GuardsForm(policy=model.guards)),
        "attack_guard": attack_guard_context(model),
    }
    return render(request, "web/my_model.html", context, status=status)


def _royalty_form(model: Model, data: QueryDict | None) -> RoyaltyForm:
    owed = model.derivative_royalty_bps
    initial = {"royalty_percent": None if owed is None else Decimal(owed) / 100}
    return RoyaltyForm(data, initial=initial, declared=bool(model.sources.all()))


def _price_form(model: Model, data: QueryDict | None) -> PriceForm:
    versions = list(selectors.versions_of(model=model, published_only=False)[:100])
    return PriceForm(data, initial=price_initial(model.facts.price), versions=versions)


def _published(version: Version) -> str:
    """Return what a publication came to, in sentences."""
    name = version.model.full_name
    review = review_of(version)
    if version.state != Version.State.IN_REVIEW or review is None:
        return f"Version {version.number} is for sale: {name} now answers with it."
    return (
        f"Version {version.number} is in review, because: {' '.join(sentences(review))} You get an answer within one "
        f"working day, by {review.due_at:%a %-d %b, %H:%M} UTC."
    )


_OFFERED_STEPS = (Version.State.PUBLISHED, Version.State.RETIRED, Version.State.REVOKED)
