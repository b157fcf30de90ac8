"""The closed list of scorers: pure functions, each with what it takes for right."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from marketplace.catalog.intervals import wilson
from protocol.eval_rows import EvalRow, Scorer
from protocol.scorers import PatternRefused, is_right, macro_f1

ASK = [{"role": "user", "content": "x"}]


def right(scorer: Scorer, expected: Any, answer: str) -> bool:
    return is_right(scorer, EvalRow(ASK, expected), answer)


@pytest.mark.parametrize(
    ("expected", "answer", "is_it"),
    [
        ({"a": 1, "b": [True]}, '{"b":[true], "a":1.0}', True),
        ('{"a": 1}', '{"a":1}', True),
        ({"a": 1}, '{"a":true}', False),
        ({"a": 1}, '{"a":1,"b":2}', False),
        ({"a": 1}, '{"a":1', False),
        ([1, 2], "[2,1]", False),
        (None, "null", True),
        ({"a": 1}, "NaN", False),
        ({"a": 1}, "[" * 100_000, False),
    ],
)
def test_exact_json(expected: Any, answer: str, is_it: bool) -> None:
    assert right(Scorer(kind="json"), expected, answer) is is_it


def test_fields_are_compared_one_by_one() -> None:
    scorer = Scorer(kind="fields", fields=("a", "b"))
    assert right(scorer, {"a": 1, "b": "x"}, '{"a":1,"b":"x","more":0}')
    assert not right(scorer, {"a": 1, "b": "x"}, '{"a":1,"b":"y"}')
    assert not right(scorer, {"a": 1, "b": None}, '{"a":1}')
    assert not right(scorer, {"a": 1, "b": "x"}, "[]")


def test_labels() -> None:
    scorer = Scorer(kind="label", field="category")
    for expected in ({"category": "dining"}, '{"category": "dining"}', "dining"):
        assert right(scorer, expected, '{"category":"dining"}')
        assert not right(scorer, expected, '{"category":"income"}')
        assert not right(scorer, expected, "dining")
    assert right(Scorer(kind="label"), "dining", " dining\n")
    assert not right(Scorer(kind="label"), "dining", "Dining")
    assert not right(scorer, "dining", '{"category":["dining"]}')


def test_macro_f1_is_the_mean_over_expected_labels() -> None:
    # a: 2 of 3 expected, 3 answered → F1 2·2/6; b: 1 of 1 expected, 1 answered → 1; an answer without a label is wrong.
    pairs = [("a", "a"), ("a", "a"), ("a", None), ("b", "b"), ("c", "a")]
    assert macro_f1(pairs) == pytest.approx((4 / 6 + 1 + 0) / 3)
    assert macro_f1([("a", "a")]) == 1 and macro_f1([]) == 0


def test_a_pattern_matches_from_end_to_end() -> None:
    scorer = Scorer(kind="regex")
    assert right(scorer, r"\d{3}-[A-Z]+", "123-AB") and not right(scorer, r"\d{3}", "1234")
    assert right(Scorer(kind="regex", field="id"), r"A\d", json.dumps({"id": "A1"}))
    assert not right(Scorer(kind="regex", field="id"), r"A\d", json.dumps({"id": 1}))


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        (r"(a+)+b", "a" * 40),
        (r"(\w*\s*)*!", "word " * 40),
        (r"(.*)*(.*)*(.*)*x", "y" * 60),
    ],
)
def test_a_hostile_pattern_ends_the_run_and_not_the_worker(pattern: str, answer: str) -> None:
    started = time.process_time()
    with pytest.raises(PatternRefused, match="longer than"):
        right(Scorer(kind="regex"), pattern, answer)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "a{99999999999999999999}", "(" * 900])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused, match="no regular expression"):
        right(Scorer(kind="regex"), pattern, "a")


@pytest.mark.parametrize(
    ("expected", "answer", "is_it"),
    [
        (0.3, "0.2", True),
        (0.3, "0.19", False),
        ("12", " 12.1 ", True),
        (1, "true", False),
        (1, "nan", False),
        (1, "1e999", False),
    ],
)
def test_numbers_within_a_tolerance(expected: Any, answer: str, is_it: bool) -> None:
    assert right(Scorer(kind="number", tolerance=0.1), expected, answer) is is_it
    assert right(Scorer(kind="number", tolerance=0.1, field="n"), {"n": expected}, f'{{"n": "{answer}"}}') is is_it


def test_wilsons_interval() -> None:
    low, high = wilson(69, 72)
    assert (round(low, 4), round(high, 4)) == (0.8845, 0.9857)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10)[0] == 0 and wilson(10, 10)[1] == pytest.approx(1)
