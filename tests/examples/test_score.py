"""Scoring by the first JSON object of a text."""

from __future__ import annotations

import pytest

from examples.score import accuracy, first_json_object, is_right


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"category":"dining"}', {"category": "dining"}),
        ('Sure! {"category": "dining"} and {"category":"travel"}', {"category": "dining"}),
        ('{oops {"category":"dining"}', {"category": "dining"}),
        ("category: dining", None),
        ('{"category":"dini', None),
        ("", None),
        ("[1, 2]", None),
    ],
)
def test_the_first_json_object_of_a_text_is_found_or_none(text: str, expected: dict[str, str] | None) -> None:
    assert first_json_object(text) == expected


def test_a_hostile_depth_is_no_object_rather_than_a_crash() -> None:
    assert first_json_object('{"a":' * 5_000) is None


def test_only_an_exact_object_is_right() -> None:
    expected = {"queue": "billing", "priority": "high"}
    assert is_right('{"priority":"high","queue":"billing"}', expected)
    assert not is_right('{"queue":"billing"}', expected)
    assert not is_right('{"queue":"billing","priority":"low"}', expected)
    assert not is_right('{"queue":"billing","priority":"high","note":"x"}', expected)


def test_accuracy_is_the_share_of_right_answers_and_refuses_unequal_lengths() -> None:
    expected = [{"a": "b"}, {"a": "c"}]
    assert accuracy(['{"a":"b"}', "no"], expected) == 0.5
    with pytest.raises(ValueError):
        accuracy(['{"a":"b"}'], expected)
    with pytest.raises(ValueError):
        accuracy([], [])
