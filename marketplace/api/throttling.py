"""Limits on guessing, kept in Valkey so that every process counts together."""

from __future__ import annotations

import hashlib
from typing import Any

from django.core.cache import cache
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from marketplace.accounts.errors import Refusal

FAILURES_PER_EMAIL = 10
FAILURE_WINDOW = 15 * 60  # seconds


class AddressThrottle(SimpleRateThrottle):
    """Requests from one IP address. Subclasses name `scope` and `rate`."""

    def get_cache_key(self, request: Request, view: Any) -> str:
        """Return one counter for each address. X-Forwarded-For is ignored: any client can write it. The server in front
        (uvicorn --forwarded-allow-ips) sets REMOTE_ADDR from it for proxies it trusts."""
        return f"throttle:{self.scope}:{request.META.get('REMOTE_ADDR', '')}"


class TokenThrottle(AddressThrottle):
    """Creating keys with e-mail and password."""

    scope = "tokens"
    rate = "30/min"


class SignUpThrottle(AddressThrottle):
    """Creating organizations."""

    scope = "sign-up"
    rate = "20/hour"


class MoneyThrottle(SimpleRateThrottle):
    """Changes of an organization's money: each asks the payment provider for something. Reading is not counted."""

    scope = "money"
    rate = "60/min"

    def get_cache_key(self, request: Request, view: Any) -> str | None:
        """Return one counter for each organization; None, which counts nothing, for a reader."""
        if request.method in SAFE_METHODS or view.caller.organization is None:
            return None
        return f"throttle:{self.scope}:{view.caller.organization.pk}"


def check_failures(email: str) -> None:
    """Raise Refusal 429 when too many passwords were wrong for this address, from wherever they came."""
    if int(cache.get(_failures_key(email), 0)) >= FAILURES_PER_EMAIL:
        raise Refusal("too many wrong passwords for this e-mail; wait 15 minutes", code="too_many_failures", status=429)


def count_failure(email: str) -> None:
    """Count one wrong password."""
    key = _failures_key(email)
    cache.add(key, 0, timeout=FAILURE_WINDOW)
    try:
        cache.incr(key)
    except ValueError:  # it expired in between
        cache.set(key, 1, timeout=FAILURE_WINDOW)


def _failures_key(email: str) -> str:
    return "login-failures:" + hashlib.sha256(email.strip().lower().encode()).hexdigest()
