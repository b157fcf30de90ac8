"""The one reader of request bodies: fields that steer an answer, and the bodies that both of its callers are fed."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from protocol.errors import RequestRefused
from protocol.requests.bodies import ChatBody, CompletionBody, EmbeddingBody, Message, untouched
from protocol.requests.parsing import parse
from tests.protocol.request_bodies import CHAT, EMBED, TEXT, bodies

KINDS = {CHAT: ChatBody, TEXT: CompletionBody, EMBED: EmbeddingBody}
PLAIN = {"model", "messages", "stream", "stream_options", "service_tier", "user", "safety_identifier"}


def chat(**fields: object) -> ChatBody:
    return ChatBody(model="a/b", messages=[Message("user", "x")], **fields)


@pytest.mark.parametrize("field", [one for one in msgspec.structs.fields(ChatBody) if one.name not in PLAIN])
def test_every_field_that_is_not_named_as_plain_touches_an_answer(field: msgspec.structs.FieldInfo) -> None:
    assert untouched(chat(), max_tokens=24)
    other = not field.default if isinstance(field.default, bool) else 5
    assert not untouched(chat(**{field.name: other}), max_tokens=24)


def test_what_a_plain_call_says_leaves_it_untouched() -> None:
    said = {"stream": True, "service_tier": "flex", "user": "u", "n": 1, "best_of": 1, "max_completion_tokens": 24}
    assert untouched(chat(**said), max_tokens=24) and not untouched(chat(max_tokens=25), max_tokens=24)


def test_the_drawn_bodies_are_of_every_kind_and_none_is_an_exception() -> None:
    outcomes: Counter[str | None] = Counter()
    for path, body in bodies(46, 2_000, "a/b"):
        try:
            parse(body, KINDS[path])
            outcomes["taken"] += 1
        except RequestRefused as refused:
            outcomes[refused.param] += 1
    assert outcomes["taken"] > 400 and len(outcomes) > 40 and outcomes[None] >= 8
