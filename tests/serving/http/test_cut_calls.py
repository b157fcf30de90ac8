"""Calls over HTTP that were cut, and calls of the past: the notation is never content, and nothing is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.errors import RequestRefused
from protocol.requests.bodies import ChatBody
from protocol.requests.parsing import parse
from serving.http.prompts import chat_messages
from serving.tokenization.chat_template import ChatTemplate
from tests.serving.http.server import Server, serving
from tests.serving.http.test_tools import SETTINGS, roomy
from tests.serving.tiny import Tiny

__all__ = ["roomy"]

NAMED = {"type": "function", "function": {"name": "get_weather"}}
ONE = '<tool_call>\n{"name": "get_weather", "arguments": {'
CUTS = [1, 2, 5, 12, 20, 29, 30, 40, len(ONE)]  # a token is a byte
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def said(answer: dict[str, Any]) -> tuple[Any, list[tuple[str, str]]]:
    message = answer["choices"][0]["message"]
    calls = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", ())]
    return message["content"], calls


async def streamed(server: Server, body: dict[str, Any]) -> tuple[str | None, list[tuple[str, str]], str]:
    content, names, arguments, reason = None, list[str](), list[str](), ""
    async with server.http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {") or not (choices := json.loads(line[6:])["choices"]):
                continue
            delta = choices[0]["delta"]
            if delta.get("content") is not None:
                content = (content or "") + delta["content"]
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    names.append(call["function"]["name"])
                    arguments.append("")
                arguments[call["index"]] += call["function"]["arguments"]
            reason = choices[0]["finish_reason"] or reason
    return content, list(zip(names, arguments, strict=True)), reason


async def test_a_forced_call_that_was_cut_has_no_content_wherever_the_cut_is(roomy: Tiny) -> None:
    async with serving(roomy) as server:
        for limit in CUTS:
            body = SETTINGS | {"max_tokens": limit, "tool_choice": NAMED}
            answer = (await server.http.post("/v1/chat/completions", json=body)).json()
            assert answer["choices"][0]["finish_reason"] == "length"
            arguments = "{" if limit == len(ONE) else ""
            known = [("get_weather", arguments)] if limit >= len('<tool_call>\n{"name": "get_weather"') else []
            assert said(answer) == (None, known), limit
            assert await streamed(server, body) == (None, known, "length"), limit


async def test_a_second_call_that_was_cut_leaves_nothing_in_the_text(roomy: Tiny) -> None:
    bias = {"2": -100}  # the model would end after its first call
    async with serving(roomy) as server:
        body = SETTINGS | {"tool_choice": "required", "tools": SETTINGS["tools"][1:], "logit_bias": bias}
        whole = len('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
        for more in (1, 2, 6, 12, 20, 30):
            limited = body | {"max_tokens": whole + more}
            content, calls = said((await server.http.post("/v1/chat/completions", json=limited)).json())
            assert content is None and calls[0] == ("ping", "{}") and len(calls) <= 2
            assert await streamed(server, limited) == (None, calls, "length")


@pytest.mark.parametrize("stop", ["name", '"', "_call>", "arguments", "w"])
async def test_a_stop_string_within_a_forced_call_leaves_nothing_in_the_text(roomy: Tiny, stop: str) -> None:
    async with serving(roomy) as server:
        body = SETTINGS | {"tool_choice": NAMED, "stop": stop}
        content, calls = said((await server.http.post("/v1/chat/completions", json=body)).json())
        assert content is None and len(calls) <= 1


def rendered(*messages: dict[str, Any]) -> str:
    body = json.dumps({"model": "m", "messages": messages}).encode()
    return ChatTemplate(TEMPLATE, {}).render(chat_messages(parse(body, ChatBody)))


def test_a_call_in_the_older_form_is_rendered_as_one_in_the_newer() -> None:
    call = {"name": "look", "arguments": '{"at": "x"}'}
    older = rendered(
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "look", "content": "seen"},
    )
    newer = rendered(
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": "seen"},
    )
    assert older == newer and '{"at": "x"}' in older and "seen" in older


def test_a_refusal_of_the_assistant_stays_in_the_conversation() -> None:
    assert rendered({"role": "assistant", "content": None, "refusal": "I may not."}) == "[assistant]I may not."
    parts = [{"type": "text", "text": "No: "}, {"type": "refusal", "refusal": "I may not."}]
    assert rendered({"role": "assistant", "content": parts}) == "[assistant]No: I may not."


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "user", "content": "x", "refusal": "not judged"}, "messages[0].refusal"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "not judged"}]}, "messages[0].content"),
        ({"role": "assistant", "content": None, "audio": {"id": "a"}}, "messages[0].audio"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}], "function_call": {"name": "f"}},
            "messages[0].function_call",
        ),
    ],
)
def test_parts_of_a_message_that_have_no_place_are_refused_by_name(message: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        rendered(message)
    assert (refused.value.status, refused.value.param) == (400, param)
