"""An optional field may be null, in every body and every part of one, and then counts as absent."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from protocol.errors import RequestRefused
from protocol.requests.bodies import ChatBody, CompletionBody, EmbeddingBody
from protocol.requests.parsing import parse
from tests.serving.http.server import serving
from tests.serving.tiny import Tiny

CHAT: dict[str, Any] = {
    "model": "base",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b", "tool_calls": [{"function": {"name": "f"}}]},
    ],
    "stream": True,
    "stream_options": {},
    "tools": [{"type": "function", "function": {"name": "f"}}],
}
BODIES: dict[Any, dict[str, Any]] = {
    ChatBody: CHAT,
    CompletionBody: {"model": "base", "prompt": "a", "stream": True, "stream_options": {}},
    EmbeddingBody: {"model": "base", "input": "a"},
}


def optional_fields(kind: Any, body: Any) -> Iterator[tuple[Any, str]]:
    """Yield each part of `body` with the name of each optional field that it may have."""
    for field in msgspec.structs.fields(kind):
        if not field.required:
            yield body, field.encode_name
        if field.name in body:
            for inner in structs_in(field.type):
                value = body[field.name]
                parts = value if isinstance(value, list) else [value]
                for part in (one for one in parts if isinstance(one, dict)):
                    yield from optional_fields(inner, part)


def taken(body: Any, kind: Any) -> Any:
    """Return the typed body, or what the refusal says."""
    try:
        return parse(json.dumps(body).encode(), kind)
    except RequestRefused as refusal:
        return refusal.message, refusal.param


def structs_in(kind: Any) -> list[Any]:
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias):
        return [kind] if issubclass(kind, msgspec.Struct) else []
    return [found for argument in typing.get_args(kind) for found in structs_in(argument)]


CASES = [
    (kind, number, name)
    for kind, body in BODIES.items()
    for number, (_, name) in enumerate(optional_fields(kind, body))
]


def test_the_fields_that_are_tried_include_those_of_inner_parts() -> None:
    names = {name for _, _, name in CASES}
    assert {"include_usage", "arguments", "encoding_format", "text", "strict", "echo", "ignore_eos"} <= names
    assert len(CASES) > 60


@pytest.mark.parametrize(("kind", "number", "name"), CASES, ids=[f"{k.__name__}-{i}-{n}" for k, i, n in CASES])
def test_null_counts_as_absent(kind: Any, number: int, name: str) -> None:
    given, absent = (json.loads(json.dumps(BODIES[kind])) for _ in range(2))
    list(optional_fields(kind, given))[number][0][name] = None
    list(optional_fields(kind, absent))[number][0].pop(name, None)
    if name == "stream":  # nothing may be said about a stream that is not wanted
        given.pop("stream_options"), absent.pop("stream_options")
    assert taken(given, kind) == taken(absent, kind)


async def test_bodies_full_of_nulls_are_answered(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        for path, kind in (
            ("completions", CompletionBody),
            ("chat/completions", ChatBody),
            ("embeddings", EmbeddingBody),
        ):
            body = {field.name: None for field in msgspec.structs.fields(kind) if not field.required}
            body |= {"model": "base", kind.prompt_field: BODIES[ChatBody]["messages"] if kind is ChatBody else "a"}
            body |= {} if kind is EmbeddingBody else {"max_tokens": 3}
            answer = await server.http.post(f"/v1/{path}", json=body)
            assert answer.status_code == 200, answer.text
