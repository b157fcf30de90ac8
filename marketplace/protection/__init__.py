"""Rules that make copying a model through its own API harder, and the requests of its customers.

The gateway applies them (`marketplace/gateway/protection.py`). Imports alerts, catalog and accounts.
"""
