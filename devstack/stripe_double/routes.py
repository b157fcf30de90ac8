"""The calls of Stripe's API: each leads to one operation and names the TypedDict that checks its parameters.

`supported` names the parameters that the double acts on. The double refuses a parameter that only Stripe knows, instead
of ignoring it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stripe import params
from stripe.params import checkout

from devstack.stripe_double.messages import JsonObject

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

_LIST = frozenset({"limit", "starting_after", "ending_before", "created", "expand"})
_RETRIEVE = frozenset({"expand"})
_CREATE_SESSION = frozenset(
    {
        "mode",
        "line_items",
        "success_url",
        "cancel_url",
        "client_reference_id",
        "customer",
        "customer_email",
        "expires_at",
        "expand",
        "metadata",
        "payment_intent_data",
    }
)


@dataclass(frozen=True, slots=True)
class Route:
    """One operation; `run(double, object id or "", parameters, idempotency key)` answers with JSON."""

    method: str
    pattern: re.Pattern[str]
    shape: type
    supported: frozenset[str]
    run: Callable[[StripeDouble, str, JsonObject, str | None], JsonObject]


def _route(
    method: str,
    path: str,
    shape: type,
    supported: frozenset[str],
    run: Callable[[StripeDouble, str, JsonObject, str | None], JsonObject],
) -> Route:
    return Route(method, re.compile(path.replace("{id}", r"([A-Za-z0-9_]{1,255})")), shape, supported, run)


def _read(path: str, kind: str, retrieve_shape: type, list_shape: type, *filters: str) -> list[Route]:
    """Make the routes to retrieve and to list one kind of object; lists filter by equality on `filters`."""

    def retrieve(double: StripeDouble, object_id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
        return double.retrieve(kind, object_id, parameters)

    def list_objects(double: StripeDouble, _id: str, parameters: JsonObject, _key: str | None) -> JsonObject:
        return double.list_objects(kind, path, parameters, filters)

    return [
        _route("GET", f"{path}/{{id}}", retrieve_shape, _RETRIEVE, retrieve),
        _route("GET", path, list_shape, _LIST | frozenset(filters), list_objects),
    ]


ROUTES: tuple[Route, ...] = (
    _route(
        "POST",
        "/v1/checkout/sessions",
        checkout.SessionCreateParams,
        _CREATE_SESSION,
        lambda double, _id, parameters, key: double.create_session(parameters, key),
    ),
    _route(
        "POST",
        "/v1/checkout/sessions/{id}/expire",
        checkout.SessionExpireParams,
        _RETRIEVE,
        lambda double, object_id, parameters, key: double.expire_session(object_id, parameters, key),
    ),
    _route(
        "POST",
        "/v1/customers",
        params.CustomerCreateParams,
        frozenset({"email", "name", "description", "metadata", "expand"}),
        lambda double, _id, parameters, key: double.create_customer(parameters, key),
    ),
    *_read(
        "/v1/checkout/sessions",
        "checkout.session",
        checkout.SessionRetrieveParams,
        checkout.SessionListParams,
        "customer",
        "payment_intent",
        "status",
    ),
    *_read("/v1/customers", "customer", params.CustomerRetrieveParams, params.CustomerListParams, "email"),
    *_read(
        "/v1/payment_intents",
        "payment_intent",
        params.PaymentIntentRetrieveParams,
        params.PaymentIntentListParams,
        "customer",
    ),
    *_read(
        "/v1/charges",
        "charge",
        params.ChargeRetrieveParams,
        params.ChargeListParams,
        "customer",
        "payment_intent",
    ),
    *_read(
        "/v1/balance_transactions",
        "balance_transaction",
        params.BalanceTransactionRetrieveParams,
        params.BalanceTransactionListParams,
        "currency",
        "source",
        "type",
    ),
    *_read(
        "/v1/events", "event", params.EventRetrieveParams, params.EventListParams, "type", "types", "delivery_success"
    ),
)


def find_route(method: str, path: str) -> tuple[Route, str] | None:
    """Return the route and the id in its path ("" without an id), or None."""
    for route in ROUTES:
        match = route.pattern.fullmatch(path) if route.method == method else None
        if match is not None:
            return route, match[1] if match.groups() else ""
    return None
