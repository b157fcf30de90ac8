"""Seals of rows that carry authority: a row counts only with a MAC by a key that is not in the database.

Whoever can write to the database, and has no root key, can make no row that counts (docs/security.md). `SealedModel`
seals rows of our own models as they are saved and checks them as they are loaded; `protect` does the same for models of
other packages, whose seals stand in a table of their own.
"""

from marketplace.accounts.seals.keys import root_key
from marketplace.accounts.seals.macs import SealBroken, require_seal
from marketplace.accounts.seals.rows import SealedModel, SealedQuerySet

__all__ = ["SealBroken", "SealedModel", "SealedQuerySet", "require_seal", "root_key"]
