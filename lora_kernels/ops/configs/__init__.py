"""Tuned launch sizes as data: one JSON file for each GPU, default.json for the rest (see tuning.py)."""
