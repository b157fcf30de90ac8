"""A stateful double of Stripe, because no test machine reaches the real one: one core behind two doors.

Tests inject `http_client.DoubleHTTPClient` into `stripe.StripeClient`; `python -m devstack.stripe_double` serves the
same core on loopback, with a checkout page for browsers. Imports nothing of ours.
"""
