"""Functions to call, over HTTP: forced ones are always called right, free ones are found in what is said."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.serving.http.server import Recorder, serving
from tests.serving.http.test_constrained import tokens_of
from tests.serving.tiny import Tiny

ASK = [{"role": "user", "content": "weather?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "w", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "ping"}},
]
SCHEMAS = {"get_weather": WEATHER, "ping": {"type": "object", "maxProperties": 0}}
# A weak model would call for ever: its end-of-sequence token is made likely.
SETTINGS: dict[str, Any] = {
    "model": "base",
    "messages": ASK,
    "tools": TOOLS,
    "max_tokens": 300,
    "logit_bias": {"2": 30},
    "seed": 1,
}


@pytest.fixture
def roomy(tiny: Tiny, tmp_path: Path) -> Tiny:
    """The same model with a context that descriptions of functions fit in, a byte a token."""
    for file in tiny.model.iterdir():
        shutil.copy(file, tmp_path / file.name)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return replace(tiny, model=tmp_path)


def check(calls: Any) -> None:
    for call in calls:
        assert call.type == "function" and call.id.startswith("call_")
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert len({call.id for call in calls}) == len(calls)


async def test_required_and_named_functions_are_called_with_valid_arguments(roomy: Tiny) -> None:
    async with serving(roomy) as server:
        create = server.openai.chat.completions.create
        for parallel in (True, False):
            answer = await create(**SETTINGS, tool_choice="required", parallel_tool_calls=parallel, n=3)
            for choice in answer.choices:
                assert choice.finish_reason == "tool_calls" and choice.message.content is None
                check(choice.message.tool_calls)
                assert parallel or len(choice.message.tool_calls or ()) == 1
        named = await create(**SETTINGS, tool_choice={"type": "function", "function": {"name": "get_weather"}}, n=3)
        for choice in named.choices:
            assert choice.finish_reason == "stop", "as OpenAI's, where the function was named"
            (call,) = choice.message.tool_calls or ()
            assert call.function.name == "get_weather"
            check([call])


async def test_calls_stream_in_pieces_that_make_the_same_calls(roomy: Tiny) -> None:
    seen = Recorder()
    async with serving(roomy, observer=seen) as server:
        create = server.openai.chat.completions.create
        whole = (await create(**SETTINGS, tool_choice="required")).choices[0].message.tool_calls
        stream = await create(**SETTINGS, tool_choice="required", stream=True)
        names: dict[int, str] = {}
        arguments: defaultdict[int, list[str]] = defaultdict(list)
        reason, content = None, ""
        async for chunk in stream:
            if not chunk.choices:  # the receipt's
                continue
            delta = chunk.choices[0].delta
            content += delta.content or ""
            for piece in delta.tool_calls or ():
                if piece.id:
                    names[piece.index] = piece.function.name
                arguments[piece.index].append(piece.function.arguments or "")
            reason = chunk.choices[0].finish_reason or reason
    assert reason == "tool_calls" and content == "" and whole
    assert [one.arguments_fit for one in seen.endings] == [True, True]
    assert all(one.queue_seconds is not None and 0 <= one.queue_seconds < 60 for one in seen.endings)
    assert [(names[i], "".join(arguments[i])) for i in names] == [
        (c.function.name, c.function.arguments) for c in whole
    ]


async def test_a_call_that_did_not_fit_ends_with_length(roomy: Tiny) -> None:
    seen = Recorder()
    async with serving(roomy, observer=seen) as server:
        named = {"type": "function", "function": {"name": "get_weather"}}
        answer = await server.openai.chat.completions.create(**SETTINGS | {"max_tokens": 60}, tool_choice=named)
        assert answer.choices[0].finish_reason == "length"
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.function.name == "get_weather" and call.function.arguments.startswith("{")
    assert [one.arguments_fit for one in seen.endings] == [False]  # half a call is none that fits


async def test_strict_functions_bind_a_model_that_is_free_to_call(roomy: Tiny) -> None:
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    bias = {"2": 8} | {str(token): 6 for token in tokens_of("<tool_call>")}
    async with serving(roomy) as server:
        answer = await server.openai.chat.completions.create(
            **SETTINGS | {"tools": tools, "logit_bias": bias, "max_tokens": 200, "temperature": 1.5}, n=16
        )
        for choice in answer.choices:
            check(choice.message.tool_calls or () if choice.finish_reason != "length" else ())


async def test_functions_that_may_not_be_called_are_only_told(roomy: Tiny) -> None:
    async with serving(roomy) as server:
        create = server.openai.chat.completions.create
        without = (await create(**SETTINGS | {"tools": openai.NOT_GIVEN, "max_tokens": 4})).usage
        answer = await create(**SETTINGS | {"max_tokens": 4}, tool_choice="none")
        assert answer.choices[0].message.tool_calls is None
        assert without is not None and answer.usage is not None
        assert answer.usage.prompt_tokens > without.prompt_tokens + len(json.dumps(WEATHER)) / 2
        # A JSON answer may be combined with functions that cannot be called.
        await create(**SETTINGS | {"max_tokens": 4}, tool_choice="none", response_format={"type": "json_object"})


async def test_a_conversation_with_calls_and_results_is_accepted(roomy: Tiny) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "ping", "arguments": '{"a": 1}'}}
    messages: Any = [
        {"role": "developer", "content": "be brief"},
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "pong"}]},
    ]
    async with serving(roomy) as server:
        create = server.openai.chat.completions.create
        assert (await create(model="base", messages=messages, max_tokens=3)).choices
        with pytest.raises(openai.BadRequestError, match="assistant"):
            await create(model="base", messages=[{"role": "user", "tool_calls": [call]}], max_tokens=3)
