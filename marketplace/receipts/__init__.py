"""Receipts that verify without the platform: signed charges, and the daily trees whose roots are published."""
