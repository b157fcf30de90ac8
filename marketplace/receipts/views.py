"""The published key file."""

from __future__ import annotations

import msgspec
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from marketplace.receipts.keys import published_keys
from marketplace.vault.errors import NotBootstrapped


@require_safe
@cache_control(public=True, max_age=300)
def keys(request: HttpRequest) -> HttpResponse:
    """Answer with every key that ever signed receipts: save it before you need it."""
    try:
        found = published_keys()
    except NotBootstrapped:
        return HttpResponse(status=503)
    text = msgspec.json.format(msgspec.json.encode(found), indent=1)
    return HttpResponse(text, content_type="application/json")
