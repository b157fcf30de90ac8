"""Requests for responses: read into a chat completion, or refused with the name of what is not supported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marketplace.accounts.errors import Refusal
from marketplace.gateway.requests import parse_prediction_request
from marketplace.gateway.responses.request import parse_response_request

IMAGE = {"type": "input_image", "image_url": "https://example.com/x.png"}


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_tool"),
        ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools[0].type", "unsupported_tool"),
        ({"tools": [{"type": "computer_use_preview"}]}, "tools[0].type", "unsupported_tool"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type", "unsupported_tool"),
        ({"tools": [{"type": "mcp", "server_url": "http://x"}]}, "tools[0].type", "unsupported_tool"),
        ({"tools": [{"type": "image_generation"}]}, "tools[0].type", "unsupported_tool"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0]", "unsupported_tool"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "unsupported_parameter"),
        ({"input": []}, "input", "invalid"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "unsupported_item"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            "unsupported_part",
        ),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0].name", "invalid"),
        ({"input": [{"type": "reasoning", "id": "x"}]}, "input", "invalid"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid"),
        ({"metadata": {"a": 1}}, "metadata", "invalid"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "invalid"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "invalid"),
        ({"previous_response_id": "x"}, "previous_response_id", "invalid"),
        ({"store": 1}, "store", "invalid"),
        ({"model": 7}, "model", "invalid_value"),
    ],
)
def test_requests_that_mean_something_else_are_refused_by_name(changes: Any, param: str, code: str) -> None:
    body = json.dumps({"model": "maker/thing", "input": "hi", **changes}).encode()
    with pytest.raises(Refusal) as refused:
        parse_prediction_request(parse_response_request(body).chat_body(), {}, chat=True)
    assert (refused.value.status, refused.value.field, refused.value.code) == (400, param, code)


def test_fields_that_clients_always_send_mean_nothing() -> None:
    extra = {"include": ["reasoning.encrypted_content"], "reasoning": {}, "truncation": "disabled", "background": False}
    body = {"model": "maker/thing", "input": "hi", "prompt_cache_key": "x", "parallel_tool_calls": True, **extra}
    made = json.loads(parse_response_request(json.dumps(body).encode()).chat_body())
    assert made == {"model": "maker/thing", "messages": [{"role": "user", "content": "hi"}]}
