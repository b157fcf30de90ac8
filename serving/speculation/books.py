"""The answers that adapters gave, one book for each scope and adapter, as KV is kept.

In memory alone: a book is gone with its adapter's revocation, with an output that was not finite, and when nobody used
it for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from serving.speculation.answers import AnswerTrie
from serving.speculation.offer import Source

BOOK_BYTES = 64 << 10
ALL_BYTES = 64 << 20
IDLE_SECONDS = 900.0

# The weight of one verified draft in a rate, and where rates begin.
_STEP = 0.1
FIRST_RATE = {Source.SCHEMA: 0.9, Source.LOOKUP: 0.4}
_LEAST, _MOST = 0.05, 0.98

Key = tuple[str | None, str | None]


class Book:
    """Knowledge of one adapter's answers in one scope.

    rates: for sources that do not count answers, the share of their tokens that the model chose
    """

    __slots__ = ("rates", "trie", "used_at")

    def __init__(self, now: float) -> None:
        self.trie, self.rates, self.used_at = AnswerTrie(BOOK_BYTES), dict(FIRST_RATE), now

    def verified(self, source: Source, drafted: int, accepted: int) -> None:
        """Note how far a draft agreed with the model: it was tried up to the first token that differs."""
        if source in self.rates:
            share = accepted / min(drafted, accepted + 1)
            rate = self.rates[source] + _STEP * (share - self.rates[source])
            self.rates[source] = min(max(rate, _LEAST), _MOST)


class Books:
    """Books by (scope, digest); the least recently used ones go first."""

    def __init__(self, most: int = ALL_BYTES // BOOK_BYTES) -> None:
        self._most = most
        self._books: OrderedDict[Key, Book] = OrderedDict()

    def __len__(self) -> int:
        return len(self._books)

    @property
    def bytes(self) -> int:
        return sum(book.trie.bytes for book in self._books.values())

    def find(self, key: Key, now: float) -> Book | None:
        """Return a book, which counts as its use."""
        book = self._books.get(key)
        if book is not None:
            book.used_at = now
            self._books.move_to_end(key)
        return book

    def open(self, key: Key, now: float) -> Book:
        """Return a book, a new one if there is none."""
        book = self.find(key, now)
        if book is None:
            book = self._books[key] = Book(now)
            while len(self._books) > self._most:
                self._books.popitem(last=False)
        return book

    def forget(self, digests: Collection[str | None]) -> None:
        """Drop every book of these adapters."""
        for key in [key for key in self._books if key[1] in digests]:
            del self._books[key]

    def forget_scope(self, scope: str) -> None:
        """Drop every book of this scope."""
        for key in [key for key in self._books if key[0] == scope]:
            del self._books[key]

    def expire(self, now: float) -> None:
        """Drop the books that nobody used for IDLE_SECONDS."""
        while self._books and now - next(iter(self._books.values())).used_at > IDLE_SECONDS:
            self._books.popitem(last=False)
