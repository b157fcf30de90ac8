"""Events, as the API lists them; `StripeDouble.emit` makes them."""

from __future__ import annotations

from stripe import params

from devstack.stripe_double.resource import read

ROUTES = tuple(
    read("/v1/events", "event", params.EventRetrieveParams, params.EventListParams, "type", "types", "delivery_success")
)
