"""The resources that the double knows: one module each, listed here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from devstack.stripe_double import (
    balance,
    cards,
    checkout,
    connect,
    connect_money,
    customers,
    disputes,
    events,
    payments,
    refunds,
)
from devstack.stripe_double.resource import Page, Route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

MODULES: tuple[Any, ...] = (
    balance,
    cards,
    checkout,
    connect,
    connect_money,
    customers,
    disputes,
    events,
    payments,
    refunds,
)

_ROUTES: tuple[Route, ...] = tuple(route for module in MODULES for route in module.ROUTES)
_PAGES: tuple[Page, ...] = tuple(page for module in MODULES for page in getattr(module, "PAGES", ()))


def find_route(method: str, path: str) -> tuple[Route, str] | None:
    """Return the route of the API and the id in its path ("" without an id), or None."""
    for route in _ROUTES:
        match = route.pattern.fullmatch(path) if route.method == method else None
        if match is not None:
            return route, match[1] if match.groups() else ""
    return None


def find_page(method: str, path: str) -> tuple[Page, str] | None:
    """Return the page for browsers and the id in its path, or None."""
    for page in _PAGES:
        match = page.pattern.fullmatch(path) if page.method == method else None
        if match is not None:
            return page, match[1] if match.groups() else ""
    return None


def let_time_pass(double: StripeDouble) -> None:
    """Let each resource do what its time has come for, such as closing a page after 24 hours."""
    for module in MODULES:
        if hasattr(module, "let_time_pass"):
            module.let_time_pass(double)
