"""A double with a clock that tests move, and Stripe's own client for it."""

from __future__ import annotations

from typing import Any

import stripe

from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.http_client import DoubleHTTPClient

KEY = "sk_test_double"
SECRET = "whsec_double"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def make_double(**options: Any) -> StripeDouble:
    return StripeDouble(api_key=KEY, webhook_secret=SECRET, base_url="http://double", **options)


def client_of(double: StripeDouble, *, key: str = KEY, retries: int = 0) -> stripe.StripeClient:
    return stripe.StripeClient(key, http_client=DoubleHTTPClient(double), max_network_retries=retries)
