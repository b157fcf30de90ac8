"""Public pages: landing, catalogue, model pages."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from billing.pricing import TokenUsage, cost_nano_usd
from billing.selectors import wallet
from marketplace.catalog import selectors
from marketplace.catalog.models import Model, ModelFacts, Price
from marketplace.watch.selectors import thumbs_of
from marketplace.web.acting import acting_of
from marketplace.web.call_price import price_of_call
from marketplace.web.cards import render_card
from marketplace.web.charts import AccuracyBar
from marketplace.web.cli_wheel import build_wheel, wheel_name
from marketplace.web.forms import CalculatorForm
from marketplace.web.snippets import build_snippets

PAGE_SIZE = 24
ORDERINGS = {"relevance": "Best match", "newest": "Newest", "price": "Lowest price", "name": "Name"}


@require_safe
def landing(request: HttpRequest) -> HttpResponse:
    """The front page, with a few models of the catalogue."""
    models = [(model, model.facts) for model in selectors.published_models(ordering="newest")[:4]]
    return render(request, "web/landing.html", {"cards": [_card(model, facts) for model, facts in models]})


@require_safe
def catalogue(request: HttpRequest) -> HttpResponse:
    """Search and filter; htmx asks for the results alone."""
    query = request.GET.get("q", "")[:200].replace("\x00", "")
    industry = request.GET.get("industry", "")[:40].replace("\x00", "")
    ordering = request.GET.get("order", "")
    if ordering not in ORDERINGS:
        ordering = "relevance"
    found = selectors.published_models(query=query, industry=industry, ordering=ordering)
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    parameters = request.GET.copy()
    parameters.pop("page", None)
    context = {
        "query": query,
        "industry": industry,
        "ordering": ordering,
        "orderings": ORDERINGS,
        "industries": selectors.industries(),
        "page": page,
        "cards": [_card(model, model.facts) for model in page],
        "parameters": parameters.urlencode(),
    }
    partial = bool(getattr(request, "htmx", False))
    response = render(request, "web/parts/results.html" if partial else "web/catalogue.html", context)
    response.headers["Vary"] = "HX-Request, Cookie"
    return response


@require_safe
def model_page(request: HttpRequest, org: str, slug: str) -> HttpResponse:
    """Everything a buyer decides by, and the playground."""
    model = _visible(request, org, slug)
    acting = acting_of(request)
    facts = model.facts
    owner = acting is not None and acting.organization.pk == model.organization_id
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
        "versions": selectors.versions_of(model=model, published_only=not owner)[:50],
        "accuracy": _accuracy(facts.evaluation) if facts.evaluation else None,
        "thumbs": thumbs_of(facts.newest),
        "evaluations": [(row, _accuracy(row)) for row in evaluations[:10]],
        "contract": contract,
        "answer_schema": json.dumps(contract["output_schema"], indent=2, ensure_ascii=False) if contract else "",
        "call_price": price_of_call(model=model, version=facts.newest, price=facts.price, message=user_message),
        "snippets": build_snippets(
            model_name=model.full_name,
            messages=messages,
            api_base=f"{settings.PUBLIC_URL}/v1",
            has_contract=contract is not None,
        ),
        "system_message": next((m["content"] for m in messages if m["role"] == "system"), ""),
        "user_message": user_message,
        "owner": owner,
        "announced_prices": selectors.announced_prices(model=model)[:5],
        "wallet": wallet(acting.organization) if acting else None,
        **_calculate(request, facts.price),
    }
    return render(request, "web/model.html", context)


@require_safe
def price_calculator(request: HttpRequest, org: str, slug: str) -> HttpResponse:
    """The calculator's answer alone, for htmx."""
    model = _visible(request, org, slug)
    context = {"model": model, **_calculate(request, model.facts.price)}
    return render(request, "web/parts/price_result.html", context)


@require_safe
def download(request: HttpRequest, name: str) -> HttpResponse:
    """The creator's command as a wheel that pip installs."""
    if name != wheel_name():
        raise Http404("no such file")
    response = HttpResponse(build_wheel(), content_type="application/octet-stream")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _visible(request: HttpRequest, org: str, slug: str) -> Model:
    acting = acting_of(request)
    model = selectors.visible_model(org_slug=org, slug=slug, viewer=acting.organization if acting else None)
    if model is None:
        raise Http404("no such model")
    return model


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


def _accuracy(evaluation: Any) -> AccuracyBar:
    return AccuracyBar(evaluation.dataset, evaluation.rows, evaluation.correct, evaluation.base_correct)


def _card(model: Model, facts: ModelFacts) -> dict[str, Any]:
    accuracy = _accuracy(facts.evaluation) if facts.evaluation else None
    return {"model": model, "price": facts.price, "version": facts.newest, "accuracy": accuracy}
