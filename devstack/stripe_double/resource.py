"""The parts of a resource module: routes of the API, pages for browsers.

A resource module of `registry.MODULES` has `ROUTES`, and where it needs them `PAGES` and `let_time_pass(double)`, which
runs before each request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devstack.stripe_double import listing
from devstack.stripe_double.messages import JsonObject, Response

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

Run = Callable[["StripeDouble", str, JsonObject, str | None], JsonObject]

LIST = frozenset({"limit", "starting_after", "ending_before", "created", "expand"})
RETRIEVE = frozenset({"expand"})


@dataclass(frozen=True, slots=True)
class Route:
    """One operation; `run(double, object id or "", parameters, idempotency key)` answers with JSON.

    `shape` is the TypedDict of `stripe.params` that checks the parameters; `supported` names those that the double acts
    on. The double refuses a parameter that only Stripe knows, instead of ignoring it.
    """

    method: str
    pattern: re.Pattern[str]
    shape: type
    supported: frozenset[str]
    run: Run


@dataclass(frozen=True, slots=True)
class Page:
    """One page for browsers; `run(double, object id, form)` answers with HTML or a redirect."""

    method: str
    pattern: re.Pattern[str]
    run: Callable[[StripeDouble, str, dict[str, str]], Response]


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(path.replace("{id}", r"([A-Za-z0-9_]{1,255})"))


def route(method: str, path: str, shape: type, supported: frozenset[str] | set[str], run: Run) -> Route:
    """Make a route; `{id}` in the path is the object's id."""
    return Route(method, _pattern(path), shape, frozenset(supported), run)


def page(method: str, path: str, run: Callable[[StripeDouble, str, dict[str, str]], Response]) -> Page:
    """Make a page; `{id}` in the path is the object's id."""
    return Page(method, _pattern(path), run)


def read(path: str, kind: str, retrieve_shape: type, list_shape: type, *filters: str) -> list[Route]:
    """Make the routes to retrieve and to list one kind of object; lists filter by equality on `filters`."""

    def retrieve(double: StripeDouble, object_id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
        return double.shown(double.find(kind, object_id), parameters)

    def list_objects(double: StripeDouble, _id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
        return listing.page(double, kind, path, parameters, filters)

    return [
        route("GET", f"{path}/{{id}}", retrieve_shape, RETRIEVE, retrieve),
        route("GET", path, list_shape, LIST | frozenset(filters), list_objects),
    ]
