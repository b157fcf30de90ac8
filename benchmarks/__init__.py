"""Measurements behind every figure the documentation claims. Each writes a table, a plot and JSON beside the machine.

May import every package of the project; nothing imports it.
"""
