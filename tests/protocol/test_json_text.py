"""JSON of answers: exactly what a grammar admits is JSON, however large or strange, and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from protocol.json_text import finished, is_json, value_of

ODD = ['"\\ud800"', '{"\\udfff":1}', "1e999", "-1E+400", "9" * 4_400, "[" * 2_000 + "]" * 2_000, " [ ] \n", '"\u2028"']
BROKEN = [
    "",
    "{",
    '{"a":',
    '{"a":1',
    '{"a":1,}',
    "[1,]",
    "01",
    "1.",
    "-",
    "nul",
    "NaN",
    "Infinity",
    '"\x01"',
    '"\\q"',
    "{} {}",
]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_what_python_cannot_hold_is_json_all_the_same(text: str) -> None:
    assert is_json(text) and not is_json(text + "x")


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_json_is_none(text: str) -> None:
    assert not is_json(text)


def drawn(rng: random.Random, deep: int = 0) -> Any:
    kind = rng.randrange(7 if deep < 4 else 5)
    if kind == 5:
        return [drawn(rng, deep + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(["a", "b", 'q"', "ü"]): drawn(rng, deep + 1) for _ in range(rng.randrange(4))}
    return [None, True, rng.randrange(-99, 99), rng.random(), rng.choice(["", "x\n", '\\"', "日"])][kind]


def test_texts_and_their_beginnings_are_judged_as_pythons_reader_judges_them() -> None:
    rng = random.Random(46)
    for _ in range(150):
        text = json.dumps(drawn(rng), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        for end in range(len(text) + 1):
            part = text[:end]
            try:
                json.loads(part)
            except ValueError:
                assert not is_json(part), part
            else:
                assert is_json(part), part


def test_a_beginning_holds_the_values_that_are_at_their_end() -> None:
    text = '{"a": {"b": "x", "c": [1, {"d": true}]}, "e": 12'
    found = dict(finished(text))
    assert found[("a", "b")] == '"x"' and found[("a", "c", 1, "d")] == "true" and ("a",) in found
    assert ("e",) not in found and () not in found  # more digits may come


def test_a_value_that_is_too_large_for_python_is_read_without_an_exception() -> None:
    assert value_of("[" + "9" * 4_400 + ",1e999]") == ["9" * 4_400, float("inf")]
    for refused in ("NaN", "[" * 100_000, "{"):
        with pytest.raises(ValueError):
            value_of(refused)
