"""The Content-Security-Policy of every page: our own origin, no inline script, no inline style.

And the list of sessions, which each request keeps true.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from allauth.usersessions.models import UserSession
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

HEADER = "Content-Security-Policy"
SEEN_SECONDS = 60  # a session's row is written once in so long, not at each request


def build_policy(*, stripe_api_base: str) -> str:
    """Return the policy as one header value.

    Browsers apply `form-action` to the redirect that answers a form too, so the pages of Stripe Checkout and
    Connect must be named: Stripe's own, or the configured base where payments go to another server.
    """
    checkout = ["https://checkout.stripe.com", "https://connect.stripe.com"]
    if stripe_api_base:
        parts = urlsplit(stripe_api_base)
        checkout.append(f"{parts.scheme}://{parts.netloc}")
    return "; ".join(
        [
            "default-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            f"form-action 'self' {' '.join(checkout)}",
        ]
    )


@sync_and_async_middleware
def ContentSecurityPolicyMiddleware(
    get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]],
) -> Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]:
    """Add the policy to every response that does not carry a stricter one of its own."""
    policy = build_policy(stripe_api_base=settings.ENV.stripe_api_base)
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            response: HttpResponseBase = await get_response(request)
            response.headers.setdefault(HEADER, policy)
            return response

        markcoroutinefunction(asynchronous)
        return asynchronous

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        assert isinstance(response, HttpResponseBase)
        response.headers.setdefault(HEADER, policy)
        return response

    return synchronous


class SeenSessionsMiddleware:
    """Note from where, and when last, each session was used, for the list on the page of sign-in and security."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Write the session's row at most once a minute; pages of strangers cost nothing."""
        key = request.session.session_key
        if key and request.user.is_authenticated and _is_due(key):
            UserSession.objects.create_from_request(request)
        return self._get_response(request)


def _is_due(session_key: str) -> bool:
    """Return whether a minute has gone by; without Valkey nothing is noted, and pages open as ever."""
    try:
        return cache.add(f"seen:{hashlib.sha256(session_key.encode()).hexdigest()[:32]}", 1, SEEN_SECONDS)
    except RedisError as error:
        logger.warning("the use of a session is not noted: %s", type(error).__name__)
        return False
