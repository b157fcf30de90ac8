"""Verified evaluations: sealed rows, measured on the platform's replicas at their creator's expense, with receipts."""
