"""Stripe's double behind the platform's own gateway, and an organization to buy credit for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stripe
from django.conf import settings

from billing import stripe_gateway
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.http_client import DoubleHTTPClient
from marketplace.accounts.models import Organization
from tests.billing.support import make_organization


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[StripeDouble]:
    """The platform's own gateway, from its settings, with the network replaced by the double."""
    double = StripeDouble(api_key=settings.ENV.stripe_api_key, webhook_secret=settings.ENV.stripe_webhook_secret)
    monkeypatch.setattr(stripe, "RequestsClient", lambda **options: DoubleHTTPClient(double))
    stripe_gateway.stripe_gateway.cache_clear()
    yield double
    stripe_gateway.stripe_gateway.cache_clear()


@pytest.fixture
def organization() -> Organization:
    return make_organization()
