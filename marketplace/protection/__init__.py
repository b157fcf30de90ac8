"""What makes copying a model through its own API harder: rules of a model, and what its customers have asked.

The gateway applies them (`marketplace/gateway/protection.py`). Imports alerts, catalog and accounts.
"""
