"""Search of the catalogue by words, spelling and meaning (docs/search.md); pgvector and encoder may be missing."""

from marketplace.catalog.search.fusion import Filters, Hit, find

__all__ = ["Filters", "Hit", "find"]
