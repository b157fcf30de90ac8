"""Rules that bind an answer, over HTTP: functions and formats together, and refusals that name their place."""

from __future__ import annotations

import json
from typing import Any, cast

import jsonschema
import pytest

from protocol.requests.bodies import ChatBody
from protocol.requests.parsing import parse
from serving.constraints import GrammarSpec, TenantGrammars
from serving.http import rules
from tests.serving.constraints.test_trials import ENDLESS, ENDLESS_LARK
from tests.serving.http.server import serving
from tests.serving.http.test_constrained import tokens_of
from tests.serving.http.test_tools import SETTINGS, check, roomy
from tests.serving.tiny import Tiny

__all__ = ["roomy"]

HELLO = [{"role": "user", "content": "a"}]
ANSWER = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}


async def test_functions_and_a_format_go_together(roomy: Tiny) -> None:
    """The output is calls or the format's; a bias towards either opening gives both."""
    async with serving(roomy) as server:
        create = server.openai.chat.completions.create
        for opening, called in (("<", True), ("{", False)):
            bias = {"2": 20} | {str(token): 60 for token in tokens_of(opening)}
            answer = await create(**SETTINGS | {"logit_bias": bias}, response_format=FORMAT, n=4)
            for choice in answer.choices:
                if choice.finish_reason == "length":
                    continue
                assert bool(choice.message.tool_calls) == called
                if not called:
                    jsonschema.validate(json.loads(choice.message.content or ""), ANSWER)
            assert any(choice.finish_reason != "length" for choice in answer.choices)
        forced = await create(**SETTINGS, response_format=FORMAT, tool_choice="required")
        check(forced.choices[0].message.tool_calls)


def function(name: str, parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


async def test_a_refused_grammar_names_the_function_and_the_key(roomy: Tiny) -> None:
    faulty = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    fine = function("fine", {"type": "object"})
    async with serving(roomy) as server:
        for extra in ({"tool_choice": "required"}, {"strict": True}, {"strict": True, "response_format": FORMAT}):
            strict = {"strict": extra.pop("strict")} if "strict" in extra else {}
            body = {
                "model": "base",
                "messages": HELLO,
                "max_tokens": 5,
                "tools": [fine, function("sort", faulty, **strict)],
            }
            answer = await server.http.post("/v1/chat/completions", json=body | extra)
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["code"] == "invalid_grammar"
            assert error["param"] == "tools[1].function.parameters.properties.tags"
            assert "'sort'" in error["message"] and "uniqueItems" in error["message"]
            assert "tool_call" not in error["message"] and "%json" not in error["message"]
        assert not server.engine._active


async def test_formats_that_only_describe_are_no_errors(roomy: Tiny) -> None:
    described = {"type": "object", "properties": {"u": {"type": "string", "format": "uri-reference", "maxLength": 3}}}
    described |= {"$schema": "http://json-schema.org/schema#"}
    async with serving(roomy) as server:
        tools = {"tools": [function("open", described)], "tool_choice": "required"}
        form = {"response_format": {"type": "json_schema", "json_schema": {"schema": described}}}
        for more in (tools, form, {"tools": [function("open", described, strict=True)]}):
            body = {"model": "base", "messages": HELLO, "max_tokens": 3, **more}
            answer = await server.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text


async def test_a_grammar_that_no_text_follows_is_a_bad_request(roomy: Tiny) -> None:
    async with serving(roomy) as server:
        bodies = [{"response_format": {"type": "json_schema", "json_schema": {"schema": one}}} for one in ENDLESS]
        bodies += [{"guided_grammar": text} for text in ENDLESS_LARK]
        bodies += [
            {"tools": [function("f", {"type": "object", "properties": {"a": one}, "required": ["a"]}, strict=True)]}
            for one in ENDLESS[5:]
        ]
        for body in bodies:
            answer = await server.http.post(
                "/v1/chat/completions", json={"model": "base", "messages": HELLO, "max_tokens": 5, **body}
            )
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_grammar", (
                body,
                answer.text,
            )
        assert not server.engine._active, "nothing was computed"


class Asked:
    """A compiler that only remembers what it was asked for."""

    def __init__(self) -> None:
        self.specs: list[GrammarSpec] = []

    async def compile(self, spec: GrammarSpec) -> Any:
        self.specs.append(spec)


@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("parallel", [True, False, None])
async def test_options_of_calls_do_not_depend_on_each_other(strict: bool | None, parallel: bool | None) -> None:
    """Whether calls may be parallel binds plain functions too; tokenization/test_call_grammar.py tries the grammar."""
    asked = Asked()
    tools = [function("ping", {"type": "object"}, strict=strict)]
    text = json.dumps({"model": "m", "messages": HELLO, "tools": tools, "parallel_tool_calls": parallel})
    body = parse(text.encode(), ChatBody)
    await rules.constraint(body, rules.tool_use(body), cast(TenantGrammars, asked))
    assert len(asked.specs) == (1 if strict or parallel is False else 0), "a free model costs no masks"
    if asked.specs:
        assert ("start: opened_call | rest" in asked.specs[0].text) == (parallel is False)
