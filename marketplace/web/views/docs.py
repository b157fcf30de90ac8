"""`/docs`: the documentation, and the reference of the APIs."""

from __future__ import annotations

from functools import cache

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from marketplace.web.docs.markdown import Rendered, render_page
from marketplace.web.docs.reference import group_named, groups
from marketplace.web.docs.shelf import Page, neighbours, shelf


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All pages, by section."""
    return render(request, "web/docs/index.html", {"sections": _sections(), "groups": groups()})


@require_safe
def page(request: HttpRequest, name: str) -> HttpResponse:
    """One page."""
    found = shelf().get(name)
    if found is None:
        raise Http404("no such page")
    before, after = neighbours(name)
    context = {
        "sections": _sections(),
        "page": found,
        "rendered": _rendered(name),
        "before": before,
        "after": after,
        "site": settings.PUBLIC_URL,
    }
    return render(request, "web/docs/page.html", context)


@require_safe
def reference(request: HttpRequest, tag: str) -> HttpResponse:
    """The operations of one part of the APIs, as the OpenAPI description has them."""
    group = group_named(tag)
    if group is None:
        raise Http404("no such part of the APIs")
    return render(request, "web/docs/reference.html", {"sections": _sections(), "groups": groups(), "group": group})


def _sections() -> dict[str, list[Page]]:
    sections: dict[str, list[Page]] = {}
    for one in shelf().values():
        sections.setdefault(one.section, []).append(one)
    return sections


@cache
def _rendered(name: str) -> Rendered:
    return render_page(shelf()[name].markdown, resolve=_resolve)


def _resolve(file: str) -> tuple[str, str] | None:
    """Return address and title of the page that a link between files names."""
    found = shelf().get(file.removesuffix(".md"))
    return None if found is None else (reverse("web:docs_page", args=[found.name]), found.title)
