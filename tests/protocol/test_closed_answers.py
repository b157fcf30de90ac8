"""Closed sets of answers: which schemas have one, in which order, and that equal answers are one text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.contracts import MAX_CLOSED_ANSWERS, canonical_answer, closed_answers


def an_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def test_an_object_of_labels_has_its_answers_in_the_schemas_order() -> None:
    schema = an_object(category={"enum": ["groceries", "dining"]}, urgent={"type": "boolean"})
    assert [json.loads(answer) for answer in closed_answers(schema)] == [
        {"category": "groceries", "urgent": False},
        {"category": "groceries", "urgent": True},
        {"category": "dining", "urgent": False},
        {"category": "dining", "urgent": True},
    ]


@pytest.mark.parametrize(
    ("schema", "answers"),
    [
        ({"enum": ["a", "é", 1, None]}, ['"a"', '"é"', "1", "null"]),
        ({"enum": ["a", "a"]}, ['"a"']),
        ({"const": {"b": 1, "a": 2}}, ['{"a":2,"b":1}']),
        ({"type": "null"}, ["null"]),
        (an_object(inner=an_object(x={"const": 1})), ['{"inner":{"x":1}}']),
        ({"enum": list(range(MAX_CLOSED_ANSWERS))}, [str(n) for n in range(MAX_CLOSED_ANSWERS)]),
    ],
)
def test_closed_sets(schema: dict[str, Any], answers: list[str]) -> None:
    assert list(closed_answers(schema)) == answers


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"type": "string"},
        {"type": ["null", "boolean"]},
        {"enum": list(range(MAX_CLOSED_ANSWERS + 1))},
        {"enum": "abc"},
        an_object(a={"enum": list(range(9))}, b={"enum": list(range(9))}),
        an_object(a={"type": "string"}),
        {**an_object(a={"const": 1}), "additionalProperties": True},
        {**an_object(a={"const": 1}), "required": []},
        {**an_object(a={"const": 1}), "properties": []},
        {"anyOf": [{"const": 1}]},
    ],
)
def test_any_other_schema_has_none(schema: dict[str, Any] | None) -> None:
    assert closed_answers(schema) == ()


def test_white_space_and_the_order_of_keys_make_no_other_answer() -> None:
    assert canonical_answer(json.loads('{ "b": 1, "a": "é"}')) == canonical_answer({"a": "é", "b": 1})
