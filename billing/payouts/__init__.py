"""Paying creators: accounts at Stripe Connect, the reserve, payouts and their schedule. docs/payouts.md explains it."""
