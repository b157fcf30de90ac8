"""Every field of a request is used, ignored or refused by name, and docs/fields.md says which."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from openai.types import (
    batch_create_params,
    completion_create_params,
    embedding_create_params,
    file_create_params,
    moderation_create_params,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from protocol.errors import RequestRefused
from protocol.request_fields import FIELDS, WISHES, Body, check_fields
from protocol.requests.bodies import ChatBody, CompletionBody, EmbeddingBody, describe_bodies
from protocol.requests.parsing import parse

PAGE = (Path(__file__).parents[2] / "docs" / "fields.md").read_text()
OPENAI: dict[str, tuple[type, ...]] = {
    "chat": (chat_create_params.CompletionCreateParamsStreaming, chat_create_params.CompletionCreateParamsNonStreaming),
    "completions": (
        completion_create_params.CompletionCreateParamsStreaming,
        completion_create_params.CompletionCreateParamsNonStreaming,
    ),
    "embeddings": (embedding_create_params.EmbeddingCreateParams,),
    "responses": (
        response_create_params.ResponseCreateParamsStreaming,
        response_create_params.ResponseCreateParamsNonStreaming,
    ),
    "moderations": (moderation_create_params.ModerationCreateParams,),
    "batches": (batch_create_params.BatchCreateParams,),
    "files": (file_create_params.FileCreateParams,),
}
BODIES: tuple[Body, ...] = get_args(Body)
LEAST: dict[Any, dict[str, Any]] = {
    ChatBody: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    CompletionBody: {"model": "m", "prompt": "a"},
    EmbeddingBody: {"model": "m", "input": "a"},
}


def of_openai(body: str) -> set[str]:
    return {name for kind in OPENAI[body] for name in kind.__required_keys__ | kind.__optional_keys__}  # type: ignore[attr-defined]


def documented(body: str) -> dict[str, str]:
    """The rows of a body's table: field → what becomes of it."""
    section = re.split(rf"^## {body}$", PAGE, flags=re.M)[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| (\w+) \|", section, flags=re.M)
    pairs = [(name, use) for names, use in rows for name in re.findall(r"`(\w+)`", names)]
    assert len(pairs) == len(dict(pairs)), "a field stands in one row"
    return dict(pairs)


@pytest.mark.parametrize("body", BODIES)
def test_the_page_has_every_field_of_openais_package_and_says_what_becomes_of_it(body: Body) -> None:
    told = documented(body)
    assert told.keys() == of_openai(body)
    assert told == {name: FIELDS[body].get(name) for name in told}


@pytest.mark.parametrize("body", BODIES)
def test_fields_are_taken_or_refused_as_listed(body: Body) -> None:
    for name, use in FIELDS[body].items():
        check_fields(body, {name: None})
        if use == "refused":
            for nothing in (False, "", [], {}):
                if name != "function_call":
                    check_fields(body, {name: nothing})
            with pytest.raises(RequestRefused) as refused:
                check_fields(body, {name: {"a": 1}})
            assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")
        else:
            check_fields(body, {name: {"a": 1}})


@pytest.mark.parametrize("body", BODIES)
def test_a_wish_about_who_serves_and_what_becomes_of_data_is_refused_by_name(body: Body) -> None:
    assert not WISHES & FIELDS[body].keys()
    for name in WISHES:
        for value in ({"order": ["x"]}, ["a"], "eu", False):
            with pytest.raises(RequestRefused) as refused:
                check_fields(body, {name: value})
            assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("body", "name", "near"),
    [
        ("chat", "max_token", "max_tokens"),
        ("chat", "temprature", "temperature"),
        ("chat", "tool_choices", "tool_choice"),
        ("completions", "top_logprobs", None),
        ("completions", "max_completion_tokens", None),
        ("responses", "max_output_token", "max_output_tokens"),
        ("embeddings", "encoding", "encoding_format"),
        ("batches", "input_file", "input_file_id"),
        ("chat", "x" * 10_000, None),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(body: Body, name: str, near: str | None) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_fields(body, {name: 1})
    assert refused.value.code == "unknown_parameter" and len(refused.value.message) < 200
    assert refused.value.param == name[:64]
    if near is not None:
        assert f"'{near}'" in refused.value.message


def test_a_call_of_an_older_function_is_refused_unless_it_asks_for_none() -> None:
    for nothing in ("none", "auto", None):
        check_fields("chat", {"function_call": nothing})
    some: list[Any] = [{"name": "f"}, "required"]
    for value in some:
        with pytest.raises(RequestRefused):
            check_fields("chat", {"function_call": value})


def read(kind: Any, **changes: Any) -> Any:
    return parse(json.dumps(LEAST[kind] | changes).encode(), kind)


@pytest.mark.parametrize("kind", LEAST)
def test_every_field_that_is_used_is_read_and_described_and_no_other(kind: Any) -> None:
    used = {name for name, use in FIELDS[kind.fields].items() if use == "used"}
    assert used == {field.encode_name for field in msgspec.structs.fields(kind)}
    assert used == describe_bodies()[kind.__name__]["properties"].keys()


@pytest.mark.parametrize("kind", LEAST)
def test_the_reader_leaves_out_ignored_fields_and_refuses_others_by_name(kind: Any) -> None:
    plain = read(kind)
    for name, use in FIELDS[kind.fields].items():
        if use == "ignored":
            for value in ("a", {"a": 1}, True):
                assert read(kind, **{name: value}) == plain
        elif use == "refused":
            with pytest.raises(RequestRefused) as refused:
                read(kind, **{name: [{"a": 1}]})
            assert (refused.value.status, refused.value.param) == (400, name)
    for name in ("temprature", "provider", "stop_token_ids", "guided_json"):
        with pytest.raises(RequestRefused) as refused:
            read(kind, **{name: {"a": 1}})
        assert (refused.value.status, refused.value.param) == (400, name)
