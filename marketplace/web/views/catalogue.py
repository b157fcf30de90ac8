"""The catalogue: search, filters with counts, and the order."""

from __future__ import annotations

import time
from functools import lru_cache
from uuid import UUID

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from marketplace.catalog import selectors
from marketplace.catalog.search import Choices, Filters, count_choices
from marketplace.web.catalogue_filters import chips_of, fields_of, parse_filters
from marketplace.web.model_cards import card_of, shelf_beside

PAGE_SIZE = 24
COUNTED_EVERY = 15  # seconds
ORDERINGS = {
    "ranked": "Standing",
    "relevance": "Best match",
    "newest": "Newest",
    "price": "Lowest price",
    "name": "Name",
}


@require_safe
def catalogue(request: HttpRequest) -> HttpResponse:
    """Search and filter; htmx asks for the results alone."""
    query = request.GET.get("q", "")[:200].replace("\x00", "")
    filters = parse_filters(request.GET)
    ordering = request.GET.get("order", "")
    if ordering not in ORDERINGS:
        ordering = "relevance" if query.strip() else "ranked"
    found = selectors.published_models(query=query, filters=filters, ordering=ordering)
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    searched = bool(query.strip())
    within = list(found.order_by().values_list("pk", flat=True)) if searched else None
    parameters = request.GET.copy()
    parameters.pop("page", None)
    active = filters.active()
    first = page.number == 1 and not searched and not active and ordering == "ranked"
    partial = bool(getattr(request, "htmx", False))
    context = {
        "query": query,
        "ordering": ordering,
        "orderings": ORDERINGS,
        "filters": list(fields_of(filters, _counts(filters, within), searched=searched)),
        "chips": list(chips_of(filters, request.GET)),
        "active": active,
        "page": page,
        "cards": [card_of(model, query) for model in page],
        "new_cards": shelf_beside(list(page)) if first else [],
        "parameters": parameters.urlencode(),
        "partial": partial,
    }
    response = render(request, "web/parts/results.html" if partial else "web/catalogue.html", context)
    response.headers["Vary"] = "HX-Request, Cookie"
    return response


def _counts(filters: Filters, within: list[UUID] | None) -> Choices:
    """Return the counts beside the choices; without a search, those of the last quarter of a minute will do."""
    if within is not None:
        return count_choices(filters, within=within)
    return _kept_counts(filters, int(time.monotonic() // COUNTED_EVERY))


@lru_cache(maxsize=500)
def _kept_counts(filters: Filters, _turn: int) -> Choices:
    return count_choices(filters)
