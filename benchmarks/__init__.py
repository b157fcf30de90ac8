"""Measurements behind every figure the documentation claims. Each prints a table and writes JSON.

May import every package of the project; no package imports it.
"""
