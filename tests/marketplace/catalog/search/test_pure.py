"""Queries, passages and reasons: functions of texts alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.catalog.search.passages import MAX_PASSAGES, PASSAGE_CHARACTERS, cut
from marketplace.catalog.search.text import MAX_LENGTH, MAX_WORDS, parse
from marketplace.catalog.search.why import mark


def test_a_query_is_cleaned_and_its_words_are_those_that_say_something() -> None:
    query = parse("  Sort\x00 my\n bänk-lines  for me ")
    assert (query.text, query.words, query.is_exact) == ("Sort my bänk-lines for me", ("sort", "bank", "lines"), False)
    assert parse("patient tri").beginning == "patient & tri:*"
    assert parse("the").beginning == "the:*", "the last word may be a half one"
    assert [parse(text).is_exact for text in ('a "b"', "a -b", "a OR b", "nurse-handover", "a - b")] == [1, 1, 1, 0, 0]


@given(st.text(max_size=3 * MAX_LENGTH))
def test_any_text_is_a_query_of_bounded_size(raw: str) -> None:
    query = parse(raw)
    assert len(query.text) <= MAX_LENGTH and len(query.words) <= MAX_WORDS
    assert query.text.encode() is not None and "\x00" not in query.text
    assert query.text == parse(query.text).text


@given(st.text(max_size=300), st.text(max_size=80))
def test_marks_change_no_letter_of_a_text(text: str, query: str) -> None:
    assert "".join(stretch.text for stretch in mark(text, query)) == text


@pytest.mark.parametrize(
    ("query", "marked"),
    [
        ("triage", ["triage"]),
        ("TRIA", ["triage"]),
        ("triaje pacient", ["Patient", "triage"]),
        ("sorting", ["Sorts"]),
        ("the of", []),
        ("banks", []),
    ],
)
def test_words_are_marked_whole_begun_inflected_or_misspelled(query: str, marked: list[str]) -> None:
    stretches = mark("Patient triage. Sorts messages.", query)
    assert [stretch.text for stretch in stretches if stretch.matched] == marked


def test_passages_begin_with_the_summary_and_leave_out_code_images_and_addresses() -> None:
    card = (
        "# Use\n\nSend *one* [message](https://x.example/y).\n\n```\nsecret = 1\n```\n\n"
        "![](https://x.example/p.png)\n\n| a | b |\n|---|---|\n| cell | two |"
    )
    first, second = cut(title="T", summary="S.", industry="health", tags=["a", "b"], card_markdown=card)
    assert first == "T. S. health, a, b"
    assert second == "Use Send one message. a b cell two"


@given(st.lists(st.text(alphabet="ab \n#`|[](<", max_size=900), max_size=12))
def test_passages_are_bounded_whatever_the_card(parts: list[str]) -> None:
    passages = cut(title="T", summary="", industry="", tags=[], card_markdown="\n\n".join(parts))
    assert 1 <= len(passages) <= MAX_PASSAGES
    assert all(0 < len(passage) <= PASSAGE_CHARACTERS for passage in passages)
