"""Search of the catalogue by words, spelling and meaning (docs/search.md). Works without pgvector, and without an encoder."""

from marketplace.catalog.search.fusion import Filters, Hit, find

__all__ = ["Filters", "Hit", "find"]
