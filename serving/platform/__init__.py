"""A replica's side of the platform: tickets, receipts, the usage journal, key leases, administration.

Imports sealed_weights, never Django. The messages are those of docs/protocol.md.
"""
