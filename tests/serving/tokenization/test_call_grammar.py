"""Grammars of calls: how many calls an output may hold, and what else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from serving.constraints import GrammarCompiler, json_spec
from serving.tokenization.tokenizer import Tokenizer
from serving.tokenization.tools import Tool, call_grammar
from tests.serving.tiny import Tiny

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [Tool("look", None, CITY), Tool("ping", None, None)]
STRICT = [Tool("look", None, CITY, strict=True), Tool("ping", None, None)]
ANSWER = json_spec({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
RIGHT = '<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "look", "arguments": {"town": 7}}\n</tool_call>'


class Follower:
    """Tells whether a grammar lets a model say a text and then end."""

    def __init__(self, tiny: Tiny) -> None:
        self.tokenizer = Tokenizer.from_dir(tiny.model)
        self.grammars = GrammarCompiler((tiny.model / "tokenizer.json").read_text, 259, [2])

    async def allows(self, text: str, tools: list[Tool], **options: Any) -> bool:
        params = [f"tools[{index}]" for index in range(len(tools))]
        state = (await self.grammars.compile(call_grammar(tools, params, **options))).begin()
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        for token in tokens:
            if np.asarray(state.forbidden())[token]:
                return False
            state.accept([token])
        return not np.asarray(state.forbidden())[2]


@pytest.fixture
async def follower(tiny: Tiny) -> AsyncIterator[Follower]:
    made = Follower(tiny)
    yield made
    made.grammars.close()


@pytest.mark.parametrize("tools", [TOOLS, STRICT], ids=["plain", "strict"])
async def test_one_call_is_the_end_where_calls_may_not_be_parallel(follower: Follower, tools: list[Tool]) -> None:
    modes: list[dict[str, Any]] = [{"forced": False}, {"forced": True}, {"forced": False, "answer": ANSWER}]
    for mode in modes:
        assert await follower.allows(RIGHT, tools, parallel=False, **mode)
        for more in (RIGHT, "\n" + RIGHT, " and " + RIGHT, "\n"):
            assert not await follower.allows(RIGHT + more, tools, parallel=False, **mode), more
        assert await follower.allows(RIGHT + "\n" + RIGHT, tools, parallel=True, **mode)


async def test_a_model_that_is_free_to_call_may_say_anything_before(follower: Follower) -> None:
    for parallel in (True, False):
        for text in ("just words", "", "I look: " + RIGHT, "a < b <tool", RIGHT):
            assert await follower.allows(text, TOOLS, parallel=parallel, forced=False), text
        assert not await follower.allows("open <tool_call> words", TOOLS, parallel=parallel, forced=False)
        assert not await follower.allows(RIGHT.replace("look", "other"), TOOLS, parallel=parallel, forced=False)


async def test_schemas_bind_strict_functions_and_forced_calls(follower: Follower) -> None:
    for parallel in (True, False):
        assert await follower.allows(WRONG, TOOLS, parallel=parallel, forced=False)
        assert await follower.allows(WRONG, TOOLS, parallel=parallel, forced=False, answer=ANSWER)
        assert not await follower.allows(WRONG, TOOLS, parallel=parallel, forced=True)
        assert not await follower.allows(WRONG, STRICT, parallel=parallel, forced=False)
        assert not await follower.allows(WRONG, STRICT, parallel=parallel, forced=False, answer=ANSWER)


async def test_an_answer_with_a_format_is_calls_or_follows_it(follower: Follower) -> None:
    for text in ('{"n": 3}', RIGHT):
        assert await follower.allows(text, TOOLS, parallel=True, forced=False, answer=ANSWER)
    for text in ("words", '{"m": 3, "n": "x"}', "I look: " + RIGHT, RIGHT + '{"n": 3}', ""):
        assert not await follower.allows(text, TOOLS, parallel=True, forced=False, answer=ANSWER), text
    assert not await follower.allows('{"n": 3}', TOOLS, parallel=True, forced=True, answer=ANSWER)
