"""The Content-Security-Policy of every page: our own origin, no inline script, no inline style."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

HEADER = "Content-Security-Policy"


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
