"""Receipts that anyone can verify offline, with nothing but a saved key file (docs/receipts.md)."""
