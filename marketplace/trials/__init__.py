"""Blind comparisons of two models on a consumer's own rows, stopped by an e-value (docs/trials.md).

Imports `accounts`, `catalog`, `vault` and `calls`.
"""
