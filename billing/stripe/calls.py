"""Every call to Stripe goes through `translated`; its answers are read with the helpers below."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from billing.errors import PaymentProviderUnavailable

logger = logging.getLogger(__name__)

CURRENCY = "usd"
MAX_ID = 255  # characters of an id at Stripe

P = ParamSpec("P")
T = TypeVar("T")


def translated(call: Callable[P, T]) -> Callable[P, T]:
    """Turn every error of Stripe's client into PaymentProviderUnavailable; the log has its type and code, no secret."""

    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        import stripe

        try:
            return call(*args, **kwargs)
        except stripe.StripeError as error:
            logger.error(
                "Stripe %s: %s %s", call.__qualname__, type(error).__name__, error.code or error.http_status or ""
            )
            raise PaymentProviderUnavailable from error

    return wrapper


def pages(page: Any) -> Iterator[Any]:
    """Yield the objects of a list, page after page."""
    yield from page.auto_paging_iter()


def reference_id(value: Any) -> str | None:
    """Return the id of a reference, which is a string or, when expanded, an object."""
    return value if value is None or isinstance(value, str) else str(value.id)


def short_name(value: Any, limit: int) -> str:
    """Return a name at Stripe. Raises ValueError for anything but a short printable text."""
    if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
        raise ValueError("a name at Stripe is a short printable text")
    return value
