"""Rows, scores and the shuffle, as functions of values."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest

from marketplace.accounts.errors import InvalidInput
from marketplace.trials import rows, shuffling
from marketplace.trials.rows import MAX_ROW_BYTES, Row, check_rows, pack, read_lines, unpack
from marketplace.trials.scoring import score, winner


def test_lines_become_rows() -> None:
    content = b'{"message": "a", "expected": {"label": "x"}}\n\n{"message": "b", "expected": "y"}\n'
    assert read_lines(content) == [Row("a", {"label": "x"}), Row("b", "y")]
    assert unpack(pack(Row("ä", [1]))) == Row("ä", [1])


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "there are no rows"),
        (b"{", "line 1 is no JSON"),
        (b'{"message": "a"}\n{"message": "b', "line 2 is no JSON"),
        (b'\xef\xbb\xbf{"message": "a"}', "line 1 begins with a byte order mark"),
        (b"PK\x03\x04\x14", "line 1 begins as zip"),
        (b'{"message": "a"}\n[1]', "row 2 must be"),
        (b'{"message": "a", "more": 1}', "row 1 must be"),
        (b'{"message": " "}', "row 1 has no message"),
        (b'{"message": 1}', "row 1 has no message"),
        (b'{"message": "a\\u0000"}', "row 1 has no message"),
        (b'{"message": "a", "expected": 1}\n{"message": "b"}', "either every row"),
        (orjson.dumps({"message": "a" * MAX_ROW_BYTES}), "line 1 has more than 32 KiB"),
        (b'{"message": "a"}\n' * 5_001, "more than 5,000 rows"),
    ],
)
def test_rows_that_break_a_rule_are_refused_by_line_and_rule(content: bytes, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        read_lines(content)


def test_too_many_bytes_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BYTES", 10)
    with pytest.raises(InvalidInput, match="MiB"):
        read_lines(b'{"message": "a"}')


def test_a_row_of_an_api_call_has_the_same_limit() -> None:
    with pytest.raises(InvalidInput, match="row 2 has more than 32 KiB"):
        check_rows([{"message": "a"}, {"message": "é" * (MAX_ROW_BYTES // 2)}])


@pytest.mark.parametrize(
    ("answer", "expected", "fields", "right"),
    [
        ('{"a": 1, "b": [2]}', {"b": [2], "a": 1}, (), 1),
        ('{"a": 1}', '{ "a": 1 }', (), 1),
        ('{"a": true}', {"a": 1}, (), 0),
        ('{"a": 1.0}', {"a": 1}, (), 1),
        ("yes ", "yes", (), 1),
        ("{broken", {"a": 1}, (), 0),
        ('{"a": 1, "b": 2, "c": 3}', {"a": 1, "b": 9, "c": 3}, ("a", "b", "c"), 2),
        ('{"a": 1}', {"b": 2}, ("a", "b"), 0),
        ("no JSON", {"a": 1}, ("a",), 0),
    ],
)
def test_answers_are_compared_as_json(answer: str, expected: Any, fields: tuple[str, ...], right: int) -> None:
    assert score(answer, expected, fields) == right


def test_the_side_with_more_right_wins() -> None:
    assert [winner(1, 0), winner(0, 1), winner(2, 2)] == [-1, 1, 0]


def test_the_shuffle_follows_from_the_seed_and_is_even() -> None:
    seed = bytes(range(32))
    assert shuffling.commitment(seed) == hashlib.sha256(seed).hexdigest()
    left = [shuffling.a_is_left(seed, row) for row in range(1, 4_001)]
    assert left == [shuffling.a_is_left(seed, row) for row in range(1, 4_001)] and 1_850 < sum(left) < 2_150
    firsts = sum(shuffling.first_is_a(number.to_bytes(32, "big")) for number in range(1_000))
    assert 440 < firsts < 560
