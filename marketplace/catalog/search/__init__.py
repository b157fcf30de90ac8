"""Search of the catalogue by words, spelling and meaning (docs/search.md); pgvector and encoder may be missing."""

from marketplace.catalog.search.counts import Choices, count_choices
from marketplace.catalog.search.filters import NO_FILTERS, Filters
from marketplace.catalog.search.fusion import Hit, find

__all__ = ["NO_FILTERS", "Choices", "Filters", "Hit", "count_choices", "find"]
