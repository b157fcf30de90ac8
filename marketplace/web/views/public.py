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
from marketplace.catalog.call_price import price_of_call
from marketplace.catalog.models import Evaluation, Model, ModelFacts, Price
from marketplace.evals.selectors import guard_of
from marketplace.promises.selectors import promises_of
from marketplace.protection.selectors import own_standing
from marketplace.watch.selectors import thumbs_of
from marketplace.web.acting import acting_of
from marketplace.web.cards import render_card
from marketplace.web.charts import AccuracyBar
from marketplace.web.cli_wheel import build_wheel, wheel_name
from marketplace.web.forms import CalculatorForm
from marketplace.web.promise_chart import promise_views
from marketplace.web.protection_forms import MoreCallsForm
from marketplace.web.review_forms import ReportForm
from marketplace.web.snippets import build_snippets
from marketplace.web.standing import picture_of, ranking_page
from marketplace.web.versions import version_lines

PAGE_SIZE = 24
LANDING_SIZE = 6
SHELF = 3  # new models on a page of others
ORDERINGS = {
    "ranked": "Standing",
    "relevance": "Best match",
    "newest": "Newest",
    "price": "Lowest price",
    "name": "Name",
}


@require_safe
def landing(request: HttpRequest) -> HttpResponse:
    """The front page: the first models of the catalogue, and a few new ones."""
    models = list(selectors.published_models()[:LANDING_SIZE])
    context = {"cards": [_card(model) for model in models], "new_cards": _shelf(models)}
    return render(request, "web/landing.html", context)


@require_safe
def catalogue(request: HttpRequest) -> HttpResponse:
    """Search and filter; htmx asks for the results alone."""
    query = request.GET.get("q", "")[:200].replace("\x00", "")
    industry = request.GET.get("industry", "")[:40].replace("\x00", "")
    ordering = request.GET.get("order", "")
    if ordering not in ORDERINGS:
        ordering = "relevance" if query.strip() else "ranked"
    found = selectors.published_models(query=query, industry=industry, ordering=ordering)
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    parameters = request.GET.copy()
    parameters.pop("page", None)
    first = page.number == 1 and not query.strip() and not industry and ordering == "ranked"
    context = {
        "query": query,
        "industry": industry,
        "ordering": ordering,
        "orderings": ORDERINGS,
        "industries": selectors.industries(),
        "page": page,
        "cards": [_card(model, query) for model in page],
        "new_cards": _shelf(list(page)) if first else [],
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
        "versions": version_lines(model, owner=owner),
        "standing": picture_of(model),
        **_measured(facts, list(evaluations[:10])),
        "thumbs": thumbs_of(facts.newest),
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
        "promises": promise_views(promises_of(model=model)),
        "attack_guard": guard_of(model=model),
        "report_form": None if acting is None or owner else ReportForm(),
        "announced_prices": selectors.announced_prices(model=model)[:5],
        "wallet": wallet(acting.organization) if acting else None,
        "own_standing": own_standing(model=model, organization=acting.organization) if acting else None,
        "more_calls": MoreCallsForm(),
        **_calculate(request, facts.price),
    }
    return render(request, "web/model.html", context)


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


def accuracy_bar(evaluation: Evaluation, *, older: bool = False) -> AccuracyBar:
    """Return the picture of a figure."""
    return AccuracyBar(evaluation.rows, evaluation.correct, evaluation.base_correct, older)


def _card(model: Model, query: str = "") -> dict[str, Any]:
    """Return the card of a model. A word of the query is marked where words found it."""
    facts = model.facts
    accuracy = accuracy_bar(facts.evaluation) if facts.evaluation else None
    return {
        "model": model,
        "price": facts.price,
        "version": facts.newest,
        "accuracy": accuracy,
        "standing": picture_of(model),
        "marked": "" if getattr(model, "found_by_meaning", False) else query,
    }


def _shelf(shown: list[Model]) -> list[dict[str, Any]]:
    """Return the cards of the new models that have their turn and are not on the page anyway."""
    there = {model.pk for model in shown}
    return [_card(model) for model in selectors.new_models(limit=SHELF) if model.pk not in there]
