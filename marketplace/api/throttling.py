"""Limits on requests and on guessing, kept in Valkey so that every process counts together."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Any

from django.core.cache import cache
from redis.exceptions import RedisError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RateState:
    """The state of one limit after a request, for the response headers."""

    limit: int
    remaining: int
    reset_seconds: int

    def headers(self) -> dict[str, str]:
        """Return the `RateLimit-*` headers."""
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_seconds),
        }


class WindowThrottle(BaseThrottle):
    """Counts requests in windows of `period` seconds; every process counts together. Subclasses say whose.

    When Valkey is away the request passes, with a logged warning.
    """

    scope = ""
    limit = 0
    period = 60  # seconds

    def __init__(self) -> None:
        self._reset = self.period

    def ident(self, request: Request, view: Any) -> str | None:
        """Return whose requests are counted together: those of one address. None counts nothing.

        X-Forwarded-For counts where TRUSTED_PROXIES name who wrote it (`marketplace.config.asgi`): it is in REMOTE_ADDR
        then, and any client can write it otherwise.
        """
        return str(request.META.get("REMOTE_ADDR", ""))

    def allow_request(self, request: Request, view: Any) -> bool:
        """Count the request, and note on the view how many are left."""
        ident = self.ident(request, view)
        if ident is None:
            return True
        window, passed = divmod(time.time(), self.period)
        self._reset = math.ceil(self.period - passed)
        try:
            count = _count(f"throttle:{self.scope}:{ident}:{int(window)}", self.period)
        except RedisError as error:
            logger.warning("rate limit not checked: %s", type(error).__name__)
            return True
        view.note_rate(RateState(self.limit, max(0, self.limit - count), self._reset))
        return count <= self.limit

    def wait(self) -> float:
        """Return the seconds until the next window."""
        return self._reset


class CallerThrottle(WindowThrottle):
    """All operations of one organization, or of one address that acts for none."""

    scope = "caller"
    limit = 1_200

    def ident(self, request: Request, view: Any) -> str | None:
        """Return one counter for each organization or address."""
        organization = view.caller.organization
        return super().ident(request, view) if organization is None else str(organization.pk)


class TokenThrottle(WindowThrottle):
    """Creating keys with e-mail and password, from one address."""

    scope = "tokens"
    limit = 30


class SignUpThrottle(WindowThrottle):
    """Creating organizations, from one address."""

    scope = "sign-up"
    limit = 20
    period = 3600


class MoneyThrottle(WindowThrottle):
    """Changes of an organization's money: each asks the payment provider for something. Reading is not counted."""

    scope = "money"
    limit = 60

    def ident(self, request: Request, view: Any) -> str | None:
        """Return one counter for each organization; None, which counts nothing, for a reader."""
        if request.method in SAFE_METHODS or view.caller.organization is None:
            return None
        return str(view.caller.organization.pk)


def _count(key: str, seconds: int) -> int:
    cache.add(key, 0, timeout=seconds + 1)
    try:
        return int(cache.incr(key))
    except ValueError:  # it expired in between
        cache.set(key, 1, timeout=seconds + 1)
        return 1
