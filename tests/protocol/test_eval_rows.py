"""Sets of rows: what is read, and what is refused with its row and rule, before sealing and again on the platform."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.eval_rows import MAX_ROW_BYTES, MAX_ROWS, RowRefused, Scorer, fingerprint, read_rows, read_scorer

LABEL = Scorer(kind="label", field="category")
SCHEMA = {"type": "object", "properties": {"category": {"enum": ["dining", "income"]}}, "required": ["category"]}
GOOD = {"message": "POS 11", "expected": {"category": "dining"}}


def lines(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def test_a_message_or_a_chat_is_read() -> None:
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    one, other = read_rows(lines(GOOD, {"messages": chat, "expected": '{"category": "income"}'}), LABEL, SCHEMA)
    assert one.messages == [{"role": "user", "content": "POS 11"}] and one.expected == {"category": "dining"}
    assert other.messages == chat
    assert "POS" not in repr(one)


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (b"", "one JSON object"),
        (b"[1]", "one JSON object"),
        (b'{"message": NaN, "expected": 1}', "one JSON object"),
        (b'{"message": "' + b"[" * 100_000 + b'"}', "at most 64 KB"),
        (b"[" * 60_000, "one JSON object"),
        (b'{"message": "\xff", "expected": "dining"}', "UTF-8"),
        (b'{"message": "\\ud800", "expected": "dining"}', "UTF-8"),
        ({"message": "x" * 10_000_000, "expected": "dining"}, "at most 64 KB"),
        ({"message": "x"}, "nothing else"),
        ({"message": "x", "expected": "dining", "score": 1}, "nothing else"),
        ({"message": "x", "messages": [], "expected": "dining"}, "nothing else"),
        ({"message": " ", "expected": "dining"}, "content must be text"),
        ({"message": 7, "expected": "dining"}, "content must be text"),
        ({"messages": [], "expected": "dining"}, "list of 1 to"),
        ({"messages": [{"role": "tool", "content": "x"}], "expected": "dining"}, "`role` and `content`"),
        ({"messages": [{"role": "assistant", "content": "x"}], "expected": "dining"}, "the user's"),
        ({"message": "x", "expected": {"category": "travel"}}, "contract allows"),
        ({"message": "x", "expected": "travel"}, "contract allows"),
        ({"message": "x", "expected": {"other": "dining"}}, "a label"),
        ({"message": " pos\u00a011 ", "expected": "income"}, "repeats the messages of row 1"),
    ],
)
def test_a_bad_row_is_refused_by_number_and_rule_without_its_text(bad: Any, rule: str) -> None:
    with pytest.raises(RowRefused, match=rule) as refusal:
        read_rows(lines(GOOD, bad, GOOD), LABEL, SCHEMA)
    assert refusal.value.row == 2


@pytest.mark.parametrize(
    ("change", "row", "rule"),
    [
        (lambda raw: b"\xef\xbb\xbf" + raw, 1, "byte order mark"),
        (lambda raw: raw.decode().encode("utf-16"), 1, "UTF-16"),
        (gzip.compress, 1, "gzip"),
        (lambda raw: gzip.compress(raw)[:-9], 1, "gzip"),
        (lambda raw: b"PK\x03\x04" + raw, 1, "zip"),
        (lambda raw: json.dumps([json.loads(line) for line in raw.splitlines()], indent=1).encode(), 1, "JSON list"),
        (lambda raw: raw[:-9], 2, "one JSON object"),
    ],
)
def test_a_file_of_another_kind_or_a_part_of_one_is_named(change: Any, row: int, rule: str) -> None:
    with pytest.raises(RowRefused, match=rule) as refusal:
        read_rows(change(lines(GOOD, GOOD | {"message": "POS 12"})), LABEL, SCHEMA)
    assert refusal.value.row == row
    assert "travel" not in str(refusal.value) and "pos" not in str(refusal.value)


def test_a_set_has_a_largest_size() -> None:
    many = lines(*({"message": f"m{number}", "expected": "dining"} for number in range(MAX_ROWS + 1)))
    with pytest.raises(RowRefused, match="10,000 rows") as refusal:
        read_rows(many, LABEL, SCHEMA)
    assert refusal.value.row == 0
    assert len(read_rows(many[: many.rindex(b"{")], LABEL, SCHEMA)) == MAX_ROWS
    with pytest.raises(RowRefused, match="64 MB"):
        read_rows(b"x" * (1 << 26) + b"x", LABEL, None)
    assert MAX_ROW_BYTES == 65_536


@pytest.mark.parametrize(
    ("scorer", "expected", "rule"),
    [
        (Scorer(kind="json"), "{", "JSON value"),
        (Scorer(kind="fields", fields=("a", "b")), {"a": 1}, "'b'"),
        (Scorer(kind="regex"), "", "pattern"),
        (Scorer(kind="regex"), "x" * 1001, "pattern"),
        (Scorer(kind="number"), "many", "number"),
        (Scorer(kind="number"), True, "number"),
    ],
)
def test_what_is_expected_fits_the_scorer(scorer: Scorer, expected: Any, rule: str) -> None:
    with pytest.raises(RowRefused, match=rule):
        read_rows(lines({"message": "x", "expected": expected}), scorer, None)


def test_scorers_are_a_closed_list() -> None:
    assert read_scorer({"kind": "label", "field": "category"}) == LABEL
    assert read_scorer({"kind": "number", "tolerance": 0.5}).tolerance == 0.5
    for bad in (
        {"kind": "model", "prompt": "Is it right?"},
        {"kind": "label", "score": 1},
        {"kind": "fields"},
        {"kind": "fields", "fields": ["a", "a"]},
        {"kind": "json", "fields": ["a"]},
        {"kind": "json", "field": "a"},
        {"kind": "label", "tolerance": 1},
        {"kind": "number", "tolerance": -1},
        "label",
    ):
        with pytest.raises(ProtocolError, match="scorer"):
            read_scorer(bad)


# A number in front: no two of them repeat each other, and none is blank.
ROWS = st.lists(st.tuples(st.text(max_size=30), st.sampled_from(["dining", "income"])), min_size=1, max_size=4).map(
    lambda made: [(f"{number} {text}", label) for number, (text, label) in enumerate(made)]
)


@given(ROWS, st.binary(max_size=60), st.integers(0, 4))
def test_rows_are_read_as_written_and_any_bytes_between_them_are_refused(
    rows: list[tuple[str, str]], noise: bytes, at: int
) -> None:
    written = [{"message": text, "expected": {"category": label}} for text, label in rows]
    read = read_rows(lines(*written), LABEL, SCHEMA)
    assert [(one.messages, one.expected) for one in read] == [
        ([{"role": "user", "content": text}], {"category": label}) for text, label in rows
    ]
    at = min(at, len(rows))
    with pytest.raises(RowRefused) as refusal:
        read_rows(lines(*written[:at], noise, *written[at:], GOOD), LABEL, SCHEMA)
    assert refusal.value.row == at + 1


def test_a_fingerprint_ignores_how_a_text_is_written() -> None:
    def of(text: str) -> bytes:
        return fingerprint([{"role": "user", "content": text}])

    assert of("Ｃafé  au\nlait") == of("café au lait")
    assert of("cafe au lait") != of("café au lait")
