"""Customers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stripe import params

from devstack.stripe_double.messages import JsonObject
from devstack.stripe_double.objects import base
from devstack.stripe_double.resource import read, route

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble


def _create(double: StripeDouble, _id: str, parameters: JsonObject, key: str | None) -> JsonObject:
    customer = double.add(
        base(
            "customer",
            "cus",
            double.now(),
            email=parameters.get("email"),
            name=parameters.get("name"),
            description=parameters.get("description"),
            metadata=parameters.get("metadata", {}),
        )
    )
    double.emit("customer.created", customer, key)
    return double.shown(customer, parameters)


ROUTES = (
    route(
        "POST",
        "/v1/customers",
        params.CustomerCreateParams,
        {"email", "name", "description", "metadata", "expand"},
        _create,
    ),
    *read("/v1/customers", "customer", params.CustomerRetrieveParams, params.CustomerListParams, "email"),
)
