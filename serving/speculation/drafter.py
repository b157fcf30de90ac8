"""Offers drafts for sequences: from an adapter's own answers, from the form that an answer must have, from the prompt.

Belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Collection

from serving.core import ConstraintState, Sequence
from serving.errors import ConstraintFailed
from serving.speculation import lookup
from serving.speculation.books import FIRST_RATE, Book, Books, Key
from serving.speculation.offer import NOTHING, Offer, Source, constant

# Tokens of one draft. The samples' answers have 7 to 15.
LONGEST_DRAFT = 8
# An offer worth this many tokens is taken as it is: others would cost time to look for.
_ENOUGH = 1.5


class Drafter:
    """Guesses what sequences say next, and learns from what they said.

    eos_token_ids: end-of-sequence tokens; no draft holds one, as the row before it already yields it
    books: of tenants' answers, by scope; seeds: of the platform's own, for every scope, which do not expire: the first
        caller of a model may come days after it was measured
    """

    def __init__(self, eos_token_ids: Collection[int] = ()) -> None:
        self._eos, self.books, self.seeds = frozenset(eos_token_ids), Books(), Books()

    def offer(self, sequence: Sequence, most: int, now: float) -> Offer:
        """Return the best draft for a sequence whose tokens are all known, of at most `most` tokens."""
        most = min(most, LONGEST_DRAFT)
        if most <= 0:
            return NOTHING
        best, book = NOTHING, self.books.find(_own(sequence), now)
        output = sequence.tokens[sequence.prompt_tokens :]
        for one in (book, self.seeds.find(_of_all(sequence), now)):
            if one is not None and not best.tokens:
                best = one.trie.ahead(output, most)
        if best.expected < _ENOUGH:
            best = max(best, self._from_schema(sequence, most, book), key=lambda offer: offer.expected)
        if best.expected < _ENOUGH:
            best = max(best, self._from_text(sequence, most, book), key=lambda offer: offer.expected)
        return best

    def verified(self, sequence: Sequence, source: Source, drafted: int, accepted: int, now: float) -> None:
        """Note that the model chose the first `accepted` of `drafted` tokens itself."""
        self.books.open(_own(sequence), now).verified(source, drafted, accepted)

    def learn(self, sequence: Sequence, now: float) -> None:
        """Learn from a sequence that ended by itself or at its limit, unless its request wants no part in drafts."""
        if not sequence.request.speculate:
            return
        answer = sequence.tokens[sequence.prompt_tokens :]
        if answer and answer[-1] in self._eos:
            answer.pop()
        self.books.open(_own(sequence), now).trie.learn(answer)
        if sequence.request.teaches:
            self.seeds.open(_of_all(sequence), now).trie.learn(answer)

    def forget(self, digests: Collection[str | None]) -> None:
        """Forget what these adapters answered, in every scope."""
        self.books.forget(digests)
        self.seeds.forget(digests)

    def expire(self, now: float) -> None:
        """Forget what nobody used for a while."""
        self.books.expire(now)

    def _from_schema(self, sequence: Sequence, most: int, book: Book | None) -> Offer:
        constraint = sequence.request.sampling.constraint
        if constraint is None:
            return NOTHING
        if sequence.drafting is None:
            sequence.drafting = _Forced(constraint.begin_draft(), sequence.prompt_tokens)
        assert isinstance(sequence.drafting, _Forced)
        tokens = sequence.drafting.ahead(sequence.tokens)[:most]
        return constant(self._before_end(tokens), _rate(book, Source.SCHEMA), Source.SCHEMA)

    def _from_text(self, sequence: Sequence, most: int, book: Book | None) -> Offer:
        tokens = self._before_end(lookup.ahead(sequence.tokens, most))
        return constant(tokens, _rate(book, Source.LOOKUP), Source.LOOKUP)

    def _before_end(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        for place, token in enumerate(tokens):
            if token in self._eos:
                return tokens[:place]
        return tokens


class _Forced:
    """Follows an answer through its grammar, in its most compact form, as long as the answer does."""

    def __init__(self, state: ConstraintState, seen: int) -> None:
        self._state: ConstraintState | None = state
        self._seen = seen

    def ahead(self, tokens: list[int]) -> tuple[int, ...]:
        """Return the tokens that the grammar leaves no choice about; none once an answer has left its compact form."""
        if self._state is None:
            return ()
        try:
            self._state.accept(tokens[self._seen :])
            self._seen = len(tokens)
            return self._state.forced()
        except ConstraintFailed:
            self._state = None
            return ()


def _own(sequence: Sequence) -> Key:
    return sequence.request.cache_scope, sequence.digest


def _of_all(sequence: Sequence) -> Key:
    return None, sequence.digest


def _rate(book: Book | None, source: Source) -> float:
    return FIRST_RATE[source] if book is None else book.rates[source]
