"""Bounds of a prompt's tokens: no form that a chat template may give the body is longer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marketplace.accounts.errors import Refusal
from marketplace.gateway.bounds import MAX_DEPTH, chat_bound, prompt_bounds, widest_json_bytes
from marketplace.gateway.requests import parse_prediction_request

VALUES: list[Any] = [
    {"ids": list(range(800))},
    {"text": "naïve 日本語 😀 \u2028 <b>&'\"", "nested": {"empty": {}, "list": [[], [1, [2.5e-300, None, True]]]}},
    [],
    "plain",
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("indent", [None, 2, 4])
def test_no_way_to_write_a_value_is_longer_than_its_bound(value: Any, ascii_only: bool, indent: int | None) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert len(written) <= widest_json_bytes(value)


@pytest.mark.parametrize("count", [200, 800, 1500])
def test_compact_arguments_of_a_call_are_bounded_as_the_value_that_a_template_writes(count: int) -> None:
    arguments = json.dumps({"ids": list(range(count))}, separators=(",", ":"))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    bound = chat_bound({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    opened = {"name": "f", "arguments": json.loads(arguments)}
    assert bound >= len(json.dumps(opened)) and bound >= len(json.dumps(opened, indent=4))


def test_arguments_that_are_no_json_count_as_text() -> None:
    call = {"function": {"name": "f", "arguments": '{"cut": [1, 2'}}
    assert chat_bound({"messages": [{"role": "assistant", "tool_calls": [call]}]}) > len('{"cut": [1, 2')


@pytest.mark.parametrize("form", ["tools", "arguments"])
def test_a_value_nested_too_deeply_is_400_and_costs_no_memory(form: str) -> None:
    deep = "[" * (MAX_DEPTH + 3) + "]" * (MAX_DEPTH + 3)
    data: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    if form == "tools":
        data["tools"] = json.loads(deep)
    else:
        data["messages"][0]["tool_calls"] = [{"function": {"name": "f", "arguments": deep}}]
    with pytest.raises(Refusal) as refusal:
        chat_bound(data)
    assert refusal.value.status == 400


def test_each_prompt_of_a_completion_has_its_own_bound() -> None:
    assert prompt_bounds(["é", [1, 2, 3]]) == (3, 4)


def body(**changes: object) -> bytes:
    return json.dumps({"model": "a/b", "prompt": "x", **changes}).encode()


def test_null_is_as_good_as_absent() -> None:
    optional = ["stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "best_of", "echo", "tools"]
    assert parse_prediction_request(body(**dict.fromkeys(optional)), chat=False) == parse_prediction_request(
        body(), chat=False
    )
    usage = parse_prediction_request(body(stream=True, stream_options={"include_usage": None}), chat=False)
    assert usage.include_usage is False


def test_a_prompt_that_is_only_scored_asks_for_no_tokens() -> None:
    assert parse_prediction_request(body(max_tokens=0, echo=True), chat=False).max_tokens == 0
    for refused in (body(max_tokens=0), body(max_tokens=0, echo=None)):
        with pytest.raises(Refusal):
            parse_prediction_request(refused, chat=False)


def test_a_limit_that_is_too_high_is_refused_with_the_limit() -> None:
    with pytest.raises(Refusal) as refusal:
        parse_prediction_request(body(max_tokens=2_000_000), chat=False)
    assert "1,000,000" in refusal.value.message and refusal.value.field == "max_tokens"
