"""A model in use: hourly sums per version, drift, thumbs and alarms, from the books and from nobody's text.

Imports `catalog`, `alerts`, `accounts`, `billing` and `protocol`. Only sums of closed blocks are shown (`blocks`).
"""
