"""Admission to a model: its licence, accepted by each organization that calls it, and customers who ask to be let in.

It may import `catalog` and what lies below.
"""
