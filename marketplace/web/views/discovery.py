"""Files by which browsers and search engines find their way: icon, robots, site map, the picture of shared links."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.shortcuts import render
from django.templatetags.static import static
from django.urls import reverse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from marketplace.catalog import selectors
from marketplace.web.docs.shelf import shelf
from marketplace.web.share_picture import share_picture

SITEMAP_MODELS = 45_000  # a site map may have 50,000 addresses
_DAY = 86_400
_PRIVATE = (
    "/dashboard/",
    "/platform/",
    "/accounts/",
    "/api/",
    "/v1/",
    "/internal/",
    "/playground/",
    "/invites/",
    "/device",
    "/oauth/",
)


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    """Send browsers that ask for the old name to the mark."""
    return HttpResponsePermanentRedirect(static("web/mark.svg"))


@require_safe
@cache_control(public=True, max_age=_DAY)
def robots(request: HttpRequest) -> HttpResponse:
    """Let crawlers read what is public, and nothing else."""
    lines = ["User-agent: *", *(f"Disallow: {path}" for path in _PRIVATE)]
    lines.append(f"Sitemap: {settings.PUBLIC_URL}{reverse('web:sitemap')}")
    return HttpResponse("\n".join(lines) + "\n", content_type="text/plain; charset=utf-8")


@require_safe
@cache_control(public=True, max_age=3600)
def sitemap(request: HttpRequest) -> HttpResponse:
    """List every public page, the listed models in the order of the catalogue."""
    fixed = [
        reverse(f"web:{name}") for name in ("landing", "catalogue", "pricing", "ranking", "verify_receipt", "docs")
    ]
    pages = [reverse("web:docs_page", args=[name]) for name in shelf()]
    models = [
        (reverse("web:model", args=[organization, slug]), updated)
        for organization, slug, updated in selectors.listed_names()[:SITEMAP_MODELS]
    ]
    context = {"site": settings.PUBLIC_URL, "pages": [*fixed, *pages], "models": models}
    return render(request, "web/sitemap.xml", context, content_type="application/xml")


@require_safe
@cache_control(public=True, max_age=_DAY)
def picture(request: HttpRequest) -> HttpResponse:
    """Answer with the picture that is shown where somebody shares a link to the site."""
    return HttpResponse(share_picture(), content_type="image/png")
