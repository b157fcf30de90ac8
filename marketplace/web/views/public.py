"""Public pages: landing, model pages, ranking, downloads."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from billing.pricing import BASIS_POINTS, TokenUsage, cost_nano_usd
from billing.selectors import wallet
from marketplace.access import selectors as access
from marketplace.access.policies import Admission
from marketplace.catalog import selectors
from marketplace.catalog.call_price import example_message, price_of_call
from marketplace.catalog.logos import logo_of
from marketplace.catalog.models import Clearance, Evaluation, Model, ModelFacts, Price
from marketplace.evals.selectors import clearances_of, guard_of
from marketplace.promises.selectors import promises_of
from marketplace.protection.selectors import own_standing
from marketplace.watch.selectors import thumbs_of
from marketplace.web.access_forms import AskForm
from marketplace.web.acting import Acting, acting_of, viewer_of
from marketplace.web.cards import render_card
from marketplace.web.cli_wheel import build_wheel, wheel_name
from marketplace.web.forms import CalculatorForm
from marketplace.web.model_cards import accuracy_bar, card_of, shelf_beside
from marketplace.web.playground import lane_of, settings_of
from marketplace.web.promise_chart import promise_views
from marketplace.web.protection_forms import MoreCallsForm
from marketplace.web.review_forms import ReportForm
from marketplace.web.snippets import build_snippets
from marketplace.web.standing import picture_of, ranking_page
from marketplace.web.versions import version_lines

LANDING_SIZE = 6
LOGO_SECONDS = 31_536_000  # a digest names one picture for ever


@require_safe
def landing(request: HttpRequest) -> HttpResponse:
    """The front page: the first models of the catalogue, and a few new ones."""
    first = selectors.published_models()[: 2 * LANDING_SIZE]
    models = [model for model in first if model.facts.price is not None][:LANDING_SIZE]  # the others cannot be called
    context = {"cards": [card_of(model) for model in models], "new_cards": shelf_beside(models)}
    return render(request, "web/landing.html", context)


@require_safe
def pricing(request: HttpRequest) -> HttpResponse:
    """The money: what buyers pay and when they do not, and what creators get."""
    models = list(selectors.published_models()[:LANDING_SIZE])
    fee_bps = settings.ENV.platform_fee_bps
    context = {
        "rows": [_priced(model) for model in models if model.facts.price is not None],
        "fee_bps": fee_bps,
        "creator_bps": BASIS_POINTS - fee_bps,
    }
    return render(request, "web/pricing.html", context)


@require_safe
def model_page(request: HttpRequest, org: str, slug: str) -> HttpResponse:
    """Everything a buyer decides by, and the playground. A former name of the organization leads to its present one."""
    model = _visible(request, org, slug)
    if model.organization.slug != org:  # not for good: the organization may take its former name back
        return redirect("web:model", org=model.organization.slug, slug=slug)
    acting = acting_of(request)
    facts = model.facts
    viewer = viewer_of(request)
    owner = viewer is not None and viewer.pk == model.organization_id
    messages = _messages(model)
    contract = facts.newest.contract if facts.newest else None
    user_message = next((m["content"] for m in messages if m["role"] == "user"), "")
    evaluations = selectors.evaluations_of(model=model)
    if not owner:
        evaluations = evaluations.filter(version__state="published")
    context = {
        "model": model,
        "facts": facts,
        "card": render_card(model.card_markdown, title=model.title),
        "versions": version_lines(model, owner=owner),
        "standing": picture_of(model),
        **_measured(facts, list(evaluations[:10])),
        "thumbs": thumbs_of(facts.newest),
        "contract": contract,
        "answer_schema": json.dumps(contract["output_schema"], indent=2, ensure_ascii=False) if contract else "",
        "call_price": price_of_call(model=model, version=facts.newest, price=facts.price, message=user_message),
        "snippets": build_snippets(
            model_name=model.full_name,
            messages=_one_call(messages),
            api_base=f"{settings.PUBLIC_URL}/v1",
            has_contract=contract is not None,
        ),
        "system_message": next((m["content"] for m in messages if m["role"] == "system"), ""),
        "user_message": user_message,
        **settings_of([lane_of(model, facts.newest, name=model.full_name, own_page=True)]),
        "owner": owner,
        "precisions": _precisions(model, facts),
        "promises": promise_views(promises_of(model=model)),
        "attack_guard": guard_of(model=model),
        "report_form": ReportForm() if viewer and acting and not owner and not acting.scopes <= {"read"} else None,
        "announced_prices": selectors.announced_prices(model=model)[:5],
        "wallet": wallet(viewer) if viewer else None,
        "prompts": [message["content"] for message in messages if message["role"] == "user"],
        **_admission(model, acting if viewer else None),
        "own_standing": own_standing(model=model, organization=viewer) if viewer else None,
        "more_calls": MoreCallsForm(),
        **_calculate(request, facts.price),
    }
    return render(request, "web/model.html", context)


def _precisions(model: Model, facts: ModelFacts) -> list[Clearance]:
    """Return where the default version is served beside the reference."""
    return list(clearances_of(model=model, owner=False).filter(version=facts.newest)) if facts.newest else []


@require_safe
def ranking(request: HttpRequest) -> HttpResponse:
    """The formula by which the catalogue is put in order."""
    return render(request, "web/ranking.html", ranking_page())


@require_safe
def price_calculator(request: HttpRequest, org: str, slug: str) -> HttpResponse:
    """The calculator's answer alone, for htmx."""
    model = _visible(request, org, slug)
    context = {"model": model, **_calculate(request, model.facts.price)}
    return render(request, "web/parts/price_result.html", context)


@require_safe
def logo(request: HttpRequest, org: str, slug: str, digest: str) -> HttpResponse:
    """The picture of a model: the one that it shows now, and for its creator and staff also one in review."""
    acting = acting_of(request)
    viewer = acting.organization if acting else None
    is_staff = request.user.is_authenticated and request.user.is_staff
    model = selectors.logo_owner(org_slug=org, slug=slug, digest=digest, viewer=viewer, is_staff=is_staff)
    image = None if model is None else logo_of(model_id=model.pk, digest=digest)
    if model is None or image is None:
        raise Http404("no such picture")
    response = HttpResponse(image, content_type="image/png")
    shared = "public" if model.visibility != Model.Visibility.PRIVATE and digest == model.logo else "private"
    response.headers["Cache-Control"] = f"{shared}, max-age={LOGO_SECONDS}, immutable"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


@require_safe
def download(request: HttpRequest, name: str) -> HttpResponse:
    """The creator's command as a wheel that pip installs."""
    if name != wheel_name():
        raise Http404("no such file")
    response = HttpResponse(build_wheel(), content_type="application/octet-stream")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _visible(request: HttpRequest, org: str, slug: str) -> Model:
    model = selectors.visible_model(org_slug=org, slug=slug, viewer=viewer_of(request))
    if model is None:
        raise Http404("no such model")
    return model


def _admission(model: Model, acting: Acting | None) -> dict[str, Any]:
    """Return what stands between the reader's organization and its first call; a model without conditions asks none."""
    organization = acting.organization if acting else None
    conditional = model.gated or model.licence_required
    return {
        "admission": access.admission_of(model=model, organization=organization) if conditional else Admission(),
        "access_request": access.request_of(model=model, organization=organization) if model.gated else None,
        "ask_form": AskForm(),
    }


def _one_call(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the messages of one call: examples without an answer are prompts of their own, and the first is shown."""
    if any(message["role"] == "assistant" for message in messages):
        return messages
    first = next((message for message in messages if message["role"] == "user"), None)
    return [message for message in messages if message["role"] == "system" or message is first]


def _calculate(request: HttpRequest, price: Price | None) -> dict[str, Any]:
    asked = "prompt_tokens" in request.GET
    form = CalculatorForm(request.GET if asked else {name: field.initial for name, field in _calculator_fields()})
    if price is None or not form.is_valid():
        return {"calculator": form, "one_nano_usd": None, "month_nano_usd": None}
    data = form.cleaned_data
    cached = data["prompt_tokens"] * (data["cached_percent"] or 0) // 100
    usage = TokenUsage(data["prompt_tokens"], cached, data["answer_tokens"])
    one = cost_nano_usd(price.point(data["latency_class"] or "standard"), usage)
    return {
        "calculator": form,
        "one_nano_usd": one,
        # The monthly free amount alone: the introductory one is no part of a usual month.
        "month_nano_usd": max(0, one * data["predictions"] - price.monthly_free_nano_usd),
        "price": price,
    }


def _calculator_fields() -> Any:
    return CalculatorForm.base_fields.items()


def _messages(model: Model) -> list[dict[str, str]]:
    """The model's example messages; a row that is not one is left out."""
    return [
        {"role": message["role"], "content": message["content"]}
        for message in model.example_messages
        if isinstance(message, dict)
        and message.get("role") in ("system", "user", "assistant")
        and isinstance(message.get("content"), str)
    ]


def _measured(facts: ModelFacts, evaluations: list[Evaluation]) -> dict[str, Any]:
    """Return the figure of the version that is for sale, or, in grey, the newest of an older one."""
    shown = facts.evaluation or (evaluations[0] if evaluations else None)
    older = facts.evaluation is None
    return {
        "measured": shown,
        "measured_label": f"Version {shown.version.number}" if shown else "",
        "accuracy": accuracy_bar(shown, older=older) if shown else None,
        "evaluations": evaluations,
    }


def _priced(model: Model) -> dict[str, Any]:
    """Return a model with its price and the price of one call, where that is known."""
    facts = model.facts
    call = price_of_call(model=model, version=facts.newest, price=facts.price, message=example_message(model))
    return {
        "model": model,
        "price": facts.price,
        "call": call,
        "calls_per_dollar": 10**9 // call.nano_usd if call is not None and call.nano_usd else None,
    }
