"""Refusals of this app."""

from __future__ import annotations

from marketplace.accounts.errors import NotFound, Refusal


class NoReceipt(NotFound):
    """The organization has no such charge, or one that cannot be proven (from before grants were kept)."""


class ReceiptContradicted(Refusal):
    """The books say something else of a charge than the tree in which it was published. An incident is open."""

    code = "receipt_contradicted"
    status = 500
