"""What a replica does with each field is what the list of fields says."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from protocol.request_fields import FIELDS
from serving.http.errors import ApiError
from serving.http.schema import ChatBody, CompletionBody, EmbeddingBody, parse

BODIES: dict[Any, dict[str, Any]] = {
    ChatBody: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    CompletionBody: {"model": "m", "prompt": "a"},
    EmbeddingBody: {"model": "m", "input": "a"},
}
OF_THE_PLATFORM = {"user", "safety_identifier"}  # a replica knows no end users


def read(kind: Any, **changes: Any) -> Any:
    return parse(json.dumps(BODIES[kind] | changes).encode(), kind)


@pytest.mark.parametrize("kind", BODIES)
def test_every_field_that_is_used_is_read(kind: Any) -> None:
    used = {name for name, use in FIELDS[kind.fields].items() if use == "used"}
    assert used - OF_THE_PLATFORM == {field.encode_name for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("kind", BODIES)
def test_ignored_fields_change_nothing_and_others_are_refused_by_name(kind: Any) -> None:
    plain = read(kind)
    for name, use in FIELDS[kind.fields].items():
        if use == "ignored" or name in OF_THE_PLATFORM:
            for value in ("a", {"a": 1}, True):
                assert read(kind, **{name: value}) == plain
        elif use == "refused":
            with pytest.raises(ApiError) as refused:
                read(kind, **{name: [{"a": 1}]})
            assert (refused.value.status, refused.value.param) == (400, name)
    for name in ("temprature", "provider", "stop_token_ids", "guided_json"):
        with pytest.raises(ApiError) as refused:
            read(kind, **{name: {"a": 1}})
        assert (refused.value.status, refused.value.param) == (400, name)
