"""Bounds of a prompt's tokens: no form that a chat template may give the body is longer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marketplace.accounts.errors import Refusal
from marketplace.gateway.bounds import chat_bound, prompt_bounds, widest_json_bytes
from marketplace.gateway.requests import PredictionRequest, parse_prediction_request
from protocol.requests.parsing import MAX_DEPTH

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


@pytest.mark.parametrize("depth", [MAX_DEPTH + 3, 5_000])
def test_a_body_nested_too_deeply_is_400_and_such_arguments_are_text(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    data = {"model": "a/b", "messages": [{"role": "user", "content": "x"}], "tools": "DEEP"}
    with pytest.raises(Refusal) as refusal:
        parse_prediction_request(json.dumps(data).replace('"DEEP"', deep).encode(), {}, chat=True)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_json")
    call = {"function": {"name": "f", "arguments": deep}}
    assert 2 * depth < chat_bound({"messages": [{"role": "assistant", "tool_calls": [call]}]}) < 2 * depth + 1_000


def test_each_prompt_of_a_completion_has_its_own_bound() -> None:
    assert prompt_bounds(["é", [1, 2, 3]]) == (3, 4)


def body(**changes: object) -> bytes:
    return json.dumps({"model": "a/b", "prompt": "x", **changes}).encode()


def test_null_is_as_good_as_absent() -> None:
    optional = ["stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "best_of", "echo", "tools"]
    optional += ["service_tier", "user", "safety_identifier"]
    nulls = parse_prediction_request(body(**dict.fromkeys(optional)), {}, chat=False)
    assert nulls == parse_prediction_request(body(), {}, chat=False)
    usage = parse_prediction_request(body(stream=True, stream_options={"include_usage": None}), {}, chat=False)
    assert usage.include_usage is False


def test_a_prompt_that_is_only_scored_asks_for_no_tokens() -> None:
    assert parse_prediction_request(body(max_tokens=0, echo=True), {}, chat=False).max_tokens == 0
    for refused in (body(max_tokens=0), body(max_tokens=0, echo=None)):
        with pytest.raises(Refusal):
            parse_prediction_request(refused, {}, chat=False)


def test_a_limit_that_is_too_high_is_refused_with_the_limit() -> None:
    with pytest.raises(Refusal) as refusal:
        parse_prediction_request(body(max_tokens=2_000_000), {}, chat=False)
    assert "1,000,000" in refusal.value.message and refusal.value.field == "max_tokens"


def test_all_that_is_computed_is_set_aside_whatever_is_returned() -> None:
    assert parsed(n=2, best_of=5, max_tokens=10, prompt=["a", "b"]).worst_tokens(1000) == 2 * 5 * 10
    assert parsed(n=2, best_of=4, max_tokens=10, use_beam_search=True).worst_tokens(1000) == 4 * 10
    for wrong in ({"n": 3, "best_of": 2}, {"best_of": 0}, {"best_of": 129}, {"best_of": True}, {"best_of": "4"}):
        with pytest.raises(Refusal) as refusal:
            parsed(**wrong)
        assert refusal.value.field == "best_of"


def parsed(headers: dict[bytes, bytes] | None = None, **changes: object) -> PredictionRequest:
    return parse_prediction_request(body(**changes), headers or {}, chat=False)


def test_the_class_of_a_request_is_that_of_its_tier() -> None:
    tiers = {"auto": "standard", "default": "standard", "priority": "interactive", "flex": "batch"}
    assert {tier: parsed(service_tier=tier).latency_class for tier in tiers} == tiers
    assert parsed().latency_class == "standard"
    for tier in ("scale", 1, ["flex"]):
        with pytest.raises(Refusal, match="service_tier"):
            parsed(service_tier=tier)


def test_the_header_names_the_end_user_before_the_body_does() -> None:
    header = {b"x-intarsia-end-user": "zoë".encode()}
    assert parsed(header, user="u", safety_identifier="s").end_user == "zoë"
    assert parsed(user="u", safety_identifier="s").end_user == "s" and parsed(user="u").end_user == "u"
    assert parsed().end_user is None
    for wrong in ("", "a\nb", "x" * 65):
        with pytest.raises(Refusal) as refusal:
            parsed(user=wrong)
        assert (refusal.value.code, refusal.value.field) == ("invalid_end_user", "user")
    with pytest.raises(Refusal):
        parsed({b"x-intarsia-end-user": b"\xff"})


def test_a_request_says_what_a_budget_that_ends_does_to_it() -> None:
    assert parsed().on_budget == "refuse" == parsed({b"x-intarsia-on-budget": b"refuse"}).on_budget
    assert parsed({b"x-intarsia-on-budget": b"stop"}).on_budget == "stop"
    with pytest.raises(Refusal, match="refuse or stop"):
        parsed({b"x-intarsia-on-budget": b"continue"})
