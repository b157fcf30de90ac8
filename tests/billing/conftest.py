"""Stripe's double behind the platform's own gateway, and an organization to buy credit for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import stripe
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection, connections

from billing.models import Account, LedgerTransaction
from billing.stripe import stripe_gateway
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.http_client import DoubleHTTPClient
from marketplace.accounts.models import Organization
from tests.billing.support import hold_request, keep, make_organization, place, settle


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[StripeDouble]:
    """The platform's own gateway, from its settings, with the network replaced by the double."""
    double = StripeDouble(api_key=settings.ENV.stripe_api_key, webhook_secret=settings.ENV.stripe_webhook_secret)
    monkeypatch.setattr(stripe, "RequestsClient", lambda **options: DoubleHTTPClient(double))
    stripe_gateway.cache_clear()
    yield double
    stripe_gateway.cache_clear()


@pytest.fixture
async def thread_connection_closed() -> AsyncIterator[None]:
    """`sync_to_async` works in a thread with a connection of its own, which would outlive the database."""
    yield
    await sync_to_async(connections.close_all)()


@pytest.fixture
def organization() -> Organization:
    return make_organization()


@pytest.fixture
def books(db: None) -> dict[str, int]:
    """A customer with 10,000 nano-dollars of which 1,000 are held and one prediction is settled."""
    buyer, creator = make_organization(10_000), make_organization()
    settled = place(hold_request(buyer, creator))
    keep(place(hold_request(buyer, creator, idempotency_key="key")).prediction_id)
    settle(settled.prediction_id)
    with connection.cursor() as cursor:  # nothing is left pending for the tests to stumble over
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    accounts = {f"{account.kind}:{account.organization_id}": account.pk for account in Account.objects.all()}
    return {
        "revenue": accounts["platform_revenue:None"],
        "customer": accounts[f"customer_credit:{buyer.pk}"],
        "creator": accounts[f"creator_reserve:{creator.pk}"],
        "promotion": accounts["promotion:None"],
        "transaction": LedgerTransaction.objects.get(kind="prediction").pk,
        "other_transaction": LedgerTransaction.objects.get(kind="promotion").pk,
    }
