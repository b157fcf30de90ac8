"""Money: pricing, holds, double-entry ledger, usage, Stripe, payouts. May import marketplace.accounts alone."""
