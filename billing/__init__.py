"""Money: pricing, holds, double-entry ledger, usage, Stripe. May import marketplace.accounts alone."""
