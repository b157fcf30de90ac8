"""An answer trie: what one adapter answered in one scope, from the first token on, and how often.

Narrow adapters answer few shapes again and again, so that past answers foretell the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from serving.speculation.offer import NOTHING, Offer, Source

# Answers longer than this are no shapes: they are neither learned nor guessed.
LONGEST = 64
# A node of a trie: a list of two, a count, a dictionary of one child. `tests` hold it against what Python takes.
NODE_BYTES = 320
# Counts as one answer of half a kind that was never seen, so that one answer alone does not foretell the next for sure.
_UNSEEN = 0.5


class _Node:
    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, _Node] = {}


class AnswerTrie:
    """Counts of past answers by their leading tokens. Holds at most `most_bytes`: beyond them, rare answers go."""

    def __init__(self, most_bytes: int) -> None:
        self._most_nodes = max(1, most_bytes // NODE_BYTES)
        self._root, self.nodes = _Node(), 1

    @property
    def answers(self) -> int:
        return self._root.count

    @property
    def bytes(self) -> int:
        return self.nodes * NODE_BYTES

    def learn(self, answer: Sequence[int]) -> None:
        """Count an answer, without its end-of-sequence token; a long one is left out."""
        if not 0 < len(answer) <= LONGEST:
            return
        node = self._root
        node.count += 1
        for token in answer:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
                self.nodes += 1
            child.count += 1
            node = child
        while self.nodes > self._most_nodes:
            self._halve()

    def ahead(self, output: Sequence[int], most: int) -> Offer:
        """Guess what follows `output`, at most `most` tokens: at each branch, the likeliest child."""
        if len(output) >= LONGEST:
            return NOTHING
        node = self._root
        for token in output:
            child = node.children.get(token)
            if child is None:
                return NOTHING
            node = child
        whole = node.count + _UNSEEN
        tokens: list[int] = []
        reached: list[float] = []
        while node.children and len(tokens) < most:
            token, node = max(node.children.items(), key=lambda item: item[1].count)
            tokens.append(token)
            reached.append(node.count / whole)
        return Offer(tuple(tokens), tuple(reached), Source.ANSWERS)

    def _halve(self) -> None:
        """Halve all counts and drop what was counted once: the latest answers weigh more."""
        self.nodes = 1
        self._root.count //= 2
        kept = [self._root]
        while kept:
            node = kept.pop()
            node.children = {token: child for token, child in node.children.items() if child.count > 1}
            for child in node.children.values():
                child.count //= 2
                self.nodes += 1
                kept.append(child)
