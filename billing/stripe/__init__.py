"""The one package that talks to Stripe, one module per noun; `stripe_gateway()` gives the calls.

Answers are parsed into the few typed values that billing uses. The stripe package is imported on first use: the web
process starts without it. Imports `billing.errors` alone.
"""

from billing.stripe.gateway import StripeGateway, stripe_gateway

__all__ = ["StripeGateway", "stripe_gateway"]
