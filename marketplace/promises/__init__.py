"""Promises of a model per month, measured from signed receipts and refunded where they were broken (docs/promises.md).

Imports `accounts`, `catalog`, `vault`, `alerts` and `billing`.
"""
