"""The sources of drafts: what each offers, learns and forgets."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.speculation import Drafter, Offer, Source, lookup
from serving.speculation.answers import NODE_BYTES, AnswerTrie, _Node
from serving.speculation.books import BOOK_BYTES, IDLE_SECONDS, Books
from serving.speculation.choose import RowCosts, choose
from tests.serving.scheduler.fakes import PlainText

END = 2


def sequence(
    output: list[int], *, scope: str = "s", digest: str | None = "d", prompt: tuple[int, ...] = (90, 91), **more: Any
) -> Sequence:
    request = Request("r", "t", scope, AdapterRef(digest), prompt, SamplingParams(temperature=0), 100, **more)
    return Sequence(request, 0.0, [*prompt, *output], PlainText(), random.Random(0))


def test_a_trie_guesses_the_likeliest_path_with_its_probability() -> None:
    trie = AnswerTrie(BOOK_BYTES)
    for answer in ([5, 6, 7], [5, 6, 7], [5, 6, 8], [9]):
        trie.learn(answer)
    offer = trie.ahead([], 8)
    assert offer.tokens == (5, 6, 7) and offer.reached == pytest.approx((3 / 4.5, 3 / 4.5, 2 / 4.5))
    assert trie.ahead([5], 1).tokens == (6,)
    assert trie.ahead([5, 6, 7], 8).tokens == () == trie.ahead([4], 8).tokens


def test_a_trie_keeps_its_size_and_what_is_said_again_and_again() -> None:
    rng, trie = random.Random(1), AnswerTrie(BOOK_BYTES)
    for _ in range(2000):
        trie.learn([3, 4, 5, 6])
        trie.learn([rng.randrange(50_000) for _ in range(12)])
        assert trie.bytes <= BOOK_BYTES
    assert trie.ahead([3], 8).tokens == (4, 5, 6)
    trie.learn(list(range(65)))
    assert trie.ahead([0], 1).tokens == (), "long answers are no shapes"


def test_a_node_takes_about_what_is_counted_for_it() -> None:
    node = _Node()
    node.children[1_000] = _Node()
    node.count = 1_000
    taken = sys.getsizeof(node) + sys.getsizeof(node.children) + sys.getsizeof(1_000) * 2
    assert 0.5 * NODE_BYTES < taken < 1.5 * NODE_BYTES


def test_lookup_finds_what_followed_the_longest_tail_last() -> None:
    assert lookup.ahead([1, 2, 3, 4, 9, 9, 1, 2, 3, 5, 8, 2, 3], 2) == (5, 8)
    assert lookup.ahead([1, 2, 3, 4, 7, 0, 3, 4, 8, 1, 2, 3, 4], 1) == (7,), "four that agree beat a later two"
    assert lookup.ahead([1, 2, 3], 4) == () == lookup.ahead([], 4) == lookup.ahead([3, 3], 4)


def test_answers_are_learned_in_their_scope_and_of_their_adapter_alone() -> None:
    drafter = Drafter([END])
    for _ in range(9):
        drafter.learn(sequence([5, 6, 7, END]), 0.0)
    assert drafter.offer(sequence([5]), 8, 0.0).tokens == (6, 7), "the end is no part of a draft"
    assert drafter.offer(sequence([5]), 1, 0.0).tokens == (6,)
    drafter.learn(sequence([5, 8, END], scope="other", speculate=False), 0.0)
    assert drafter.offer(sequence([5], scope="other"), 8, 0.0).tokens == ()
    assert drafter.offer(sequence([5], digest="other"), 8, 0.0).tokens == ()


def test_the_platform_s_own_answers_are_every_scope_s_until_the_scope_has_its_own() -> None:
    drafter = Drafter([END])
    for _ in range(9):
        drafter.learn(sequence([5, 6, 7, END], scope="platform", teaches=True), 0.0)
    drafter.expire(2 * IDLE_SECONDS)
    assert drafter.offer(sequence([]), 8, 0.0).tokens == (5, 6, 7) and not len(drafter.books)
    drafter.learn(sequence([8, 9, END]), 0.0)
    assert drafter.offer(sequence([]), 8, 0.0).tokens == (8, 9)
    assert drafter.offer(sequence([5]), 8, 0.0).tokens == (6, 7), "the own book does not know this beginning"
    drafter.forget(["d"])
    assert drafter.offer(sequence([5]), 8, 0.0).tokens == () and not len(drafter.books) + len(drafter.seeds)


def test_books_go_with_time_and_when_there_are_too_many() -> None:
    books = Books(most=2)
    for name in "abc":
        books.open((name, None), 0.0)
    assert books.find(("a", None), 1.0) is None and books.find(("b", None), 1.0) is not None
    books.expire(IDLE_SECONDS + 0.5)
    assert books.find(("c", None), 0.0) is None and len(books) == 1


def test_rates_follow_what_the_model_agrees_with() -> None:
    drafter, asking = Drafter(), sequence([1, 2, 3, 1, 2])
    first = drafter.offer(asking, 8, 0.0)
    assert first.source is Source.LOOKUP and first.tokens == (3, 1, 2)
    for _ in range(40):
        drafter.verified(asking, Source.LOOKUP, 3, 3, 0.0)
    assert drafter.offer(asking, 8, 0.0).expected > 2.8 > first.expected
    for _ in range(80):
        drafter.verified(asking, Source.LOOKUP, 3, 0, 0.0)
    assert drafter.offer(asking, 8, 0.0).expected < 0.1


def test_rows_are_taken_in_falling_probability_while_they_pay() -> None:
    sure, unsure = Offer((1, 2, 3), (0.9, 0.8, 0.7)), Offer((4, 5), (0.85, 0.2))
    free = RowCosts(token=1.0, near=0.1, late=0.75, near_rows=2)
    assert choose([sure, unsure], free, 9) == [2, 1], "two rows are nearly free, the third must be worth its 0.75"
    assert choose([sure, unsure], free, 1) == [1, 0]
    assert choose([sure, unsure], RowCosts(1.0, 0.1, 0.1, 0), 9) == [3, 2]
    assert choose([sure, unsure], RowCosts(1.0, 2.0, 2.0, 9), 9) == [0, 0]
