"""A stateful double of Stripe, because no test machine reaches the real one: one core behind two doors.

`http_client.DoubleHTTPClient` is injected into `stripe.StripeClient` by tests; `python -m billing.stripe_double` serves
the same core on loopback, with a checkout page for browsers. Imports neither Django nor the rest of billing.
"""
