"""The gateway to Stripe: one attribute per noun, each with its calls."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from django.conf import settings

from billing.stripe.balance import Balance
from billing.stripe.cards import Cards
from billing.stripe.charges import Charges
from billing.stripe.checkout import Checkout
from billing.stripe.connect import Connect
from billing.stripe.disputes import Disputes
from billing.stripe.events import Events
from billing.stripe.refunds import Refunds

if TYPE_CHECKING:
    import stripe

CONNECT_SECONDS = 3.0
READ_SECONDS = 15.0
NETWORK_RETRIES = 2


class StripeGateway:
    """All calls to Stripe. Every write carries an idempotency key, so that a retry after a lost answer changes nothing.

    Each call raises PaymentProviderUnavailable when Stripe cannot be reached or refuses.
    """

    def __init__(self, client: stripe.StripeClient, *, webhook_secret: str, reckons_tax: bool = True) -> None:
        self.checkout = Checkout(client, reckons_tax=reckons_tax)
        self.balance = Balance(client)
        self.cards = Cards(client)
        self.charges = Charges(client)
        self.connect = Connect(client)
        self.disputes = Disputes(client)
        self.events = Events(client, webhook_secret=webhook_secret)
        self.refunds = Refunds(client)


@functools.cache
def stripe_gateway() -> StripeGateway:
    """Return this process's gateway, from its settings: to Stripe, or to the double that STRIPE_API_BASE names."""
    import stripe

    env = settings.ENV
    base = env.stripe_api_base.rstrip("/")
    client = stripe.StripeClient(
        env.stripe_api_key,
        base_addresses={"api": base, "files": base} if base else {},
        http_client=stripe.RequestsClient(timeout=(CONNECT_SECONDS, READ_SECONDS)),
        max_network_retries=NETWORK_RETRIES,
    )
    return StripeGateway(client, webhook_secret=env.stripe_webhook_secret, reckons_tax=env.stripe_tax)
