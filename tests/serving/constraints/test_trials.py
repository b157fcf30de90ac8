"""A grammar that no output can follow is found while the request is checked, in a process that may die over it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serving.constraints import GrammarCompiler, GrammarError, GrammarSpec, SchemaPart, compiler, json_spec
from serving.constraints.child import Question
from serving.constraints.compiler import TrialLimits
from tests.serving.tiny import Tiny

GOOD = json_spec({"type": "boolean"})


@pytest.fixture
async def grammars(tiny: Tiny) -> AsyncIterator[GrammarCompiler]:
    made = made_for(tiny)
    yield made
    made.close()


def made_for(tiny: Tiny, limits: TrialLimits | None = None) -> GrammarCompiler:
    return GrammarCompiler((tiny.model / "tokenizer.json").read_text, 259, [2], limits)


ENDLESS: list[Any] = [
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    {"definitions": {"x": {"$ref": "#/definitions/x"}}, "anyOf": [{"$ref": "#/definitions/x"}]},
    {"$ref": "#"},
    {"enum": []},
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"type": "string", "pattern": "^a$", "minLength": 5},
]
ENDLESS_LARK = ["start: start", 'start: a\na: start "x"', "start: X\nX: /a/ & /b/", "start: a | b\na: b\nb: a"]


async def test_a_grammar_without_any_text_is_refused(grammars: GrammarCompiler) -> None:
    specs = [json_spec(schema) for schema in ENDLESS] + [GrammarSpec("lark", text) for text in ENDLESS_LARK]
    for spec in specs:
        with pytest.raises(GrammarError):
            await grammars.compile(spec)
    assert (await grammars.compile(GOOD)).begin()


async def test_a_part_without_any_text_behind_others_is_refused(grammars: GrammarCompiler) -> None:
    """The fault is met after some tokens: the first mask alone does not show it."""
    for text in ('start: "abc" x\nx: X\nX: /a/ & /b/', 'start: "x" "y" y\ny: Y "z"\nY: /[0-9]/ & /[a-z]/'):
        with pytest.raises(GrammarError):
            await grammars.compile(GrammarSpec("lark", text))


@pytest.mark.parametrize(
    ("schema", "place", "says"),
    [
        ({"properties": {"a": {"type": "integer"}, "b": {"not": {}}}}, ".properties.b", "not"),
        ({"properties": {"tags": {"type": "array", "uniqueItems": True}}}, ".properties.tags", "uniqueItems"),
        (
            {"properties": {"x": {"type": "array", "items": {"pattern": "(?=a)b", "type": "string"}}}},
            ".properties.x",
            "",
        ),
        ({"$defs": {"d": {"type": "strin"}}, "properties": {"x": {"$ref": "#/$defs/d"}}}, "", "strin"),
        ({"propertyNames": {"pattern": "a"}}, "", "propertyNames"),
    ],
)
async def test_a_fault_in_a_part_of_a_generated_grammar_is_named_by_its_place(
    grammars: GrammarCompiler, schema: Any, place: str, says: str
) -> None:
    parts = tuple(SchemaPart(f"part[{i}]", json_spec(s).text) for i, s in enumerate(({"type": "object"}, schema)))
    lark = "\n".join(
        ["%llguidance {}", "start: a | b", *(f"{n}: %json {p.text}" for n, p in zip("ab", parts, strict=True))]
    )
    with pytest.raises(GrammarError) as caught:
        await grammars.compile(GrammarSpec("lark", lark, parts))
    assert caught.value.param is not None and caught.value.param.startswith("part[1]" + place)
    assert says in str(caught.value) and "%json" not in str(caught.value) and "start:" not in str(caught.value)


async def test_a_process_without_memory_left_costs_only_its_own_grammar(tiny: Tiny) -> None:
    grammars = made_for(tiny, TrialLimits(memory_bytes=1 << 12))
    wide = json_spec({"enum": [f"word {n}" for n in range(3000)]})
    with pytest.raises(GrammarError, match="too"):
        await grammars.compile(wide)
    with pytest.raises(GrammarError, match="too"):
        await grammars.compile(wide)
    grammars.close()


STUCK = "import sys\nsys.stdin.readline()\nprint('{}', flush=True)\nsys.stdin.readline()\nsys.stdin.read()"
DIES = "import sys, os\nsys.stdin.readline()\nprint('{}', flush=True)\nsys.stdin.readline()\nos.abort()"


@pytest.mark.parametrize("script", [STUCK, DIES], ids=["stuck", "dies"])
async def test_a_process_that_hangs_or_dies_is_replaced(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    grammars = made_for(tiny, TrialLimits(seconds=1))
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_COMMAND", [sys.executable, "-c", script])
        with pytest.raises(GrammarError, match="too much time or memory"):
            await grammars.compile(GOOD)
    grammars.close()
    again = made_for(tiny)
    assert (await again.compile(GOOD)).begin()
    again.close()


async def test_one_dead_process_does_not_end_the_compiler(
    tiny: Tiny, grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_COMMAND", [sys.executable, "-c", DIES])
        with pytest.raises(GrammarError):
            await grammars.compile(GOOD)
    assert (await grammars.compile(json_spec({"type": "null"}))).begin()


async def test_a_grammar_is_tried_once_whether_good_or_bad(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Question] = []
    verdict = compiler._Trial.verdict
    monkeypatch.setattr(compiler._Trial, "verdict", lambda self, one: asked.append(one) or verdict(self, one))
    bad = json_spec(ENDLESS[0])
    for _ in range(3):
        assert (await grammars.compile(GOOD)) is (await grammars.compile(GOOD))
        with pytest.raises(GrammarError):
            await grammars.compile(bad)
    assert [one.grammar for one in asked] == [GOOD, bad]


async def test_a_model_without_an_end_has_no_grammars(tiny: Tiny) -> None:
    endless = GrammarCompiler((tiny.model / "tokenizer.json").read_text, 259, [])
    with pytest.raises(GrammarError, match="end-of-sequence"):
        await endless.compile(GOOD)
    endless.close()
