"""Which beginnings of an answer are worth their price, and which schemas leave nothing to a caller's message."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.contracts import answers_are_choices, delivers

QUEUE, PRIORITY = {"enum": ["billing", "bug"]}, {"type": "boolean"}


def an_object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


TICKET = an_object(queue=QUEUE, priority=PRIORITY)
EXPLAINED = an_object(queue=QUEUE, reason={"type": "string"})
BY_NAME = an_object(queue={"$ref": "#/$defs/Queue"}, reason={"type": "string"}) | {"$defs": {"Queue": QUEUE}}
NESTED = an_object(ticket={"allOf": [TICKET]}, note={"type": "string"})
LIST = an_object(tickets={"type": "array", "items": TICKET})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TICKET, '{"queue":"billing","priority":true'),
        (TICKET, '{"queue": "billing", "priority":false \n\n\n'),
        (TICKET, '{"queue":"billing","priority":true}'),
        (EXPLAINED, '{"queue":"bug","reason":"because it'),
        (BY_NAME, '{"queue":"bug","reas'),
        (NESTED, '{"ticket":{"queue":"bug","priority":true},"no'),
        (LIST, '{"tickets":[{"queue":"bug","priority":true},{"que'),
        (an_object([], queue=QUEUE, text={"type": "string"}), '{"queue":"bug","te'),
        ({"enum": ["yes", "no"]}, '"yes"'),
        ({"type": "string"}, '"a \\ud800"'),
        ({"type": "number"}, "1e999"),
        ({"type": "integer"}, "7" * 4_400),
    ],
)
def test_a_text_that_holds_all_choices_or_is_whole_is_delivered(schema: dict[str, Any], text: str) -> None:
    assert delivers(schema, text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TICKET, '{"queue":"billing","priority":'),
        (TICKET, '{"queue":"billing"'),
        (TICKET, ""),
        (TICKET, "no JSON"),
        (an_object(reason={"type": "string"}, queue=QUEUE), '{"reason":"long","queue":"bi'),
        (an_object(text={"type": "string"}), '{"text":"all but the last quote'),
        (NESTED, '{"ticket":{"queue":"bug","prio'),
        (LIST, '{"tickets":[{"queue":"bug",'),
        ({"enum": ["yes", "no"]}, '"ye'),
    ],
)
def test_a_text_that_lacks_a_choice_is_not(schema: dict[str, Any], text: str) -> None:
    assert not delivers(schema, text)


def test_a_schema_that_refers_to_itself_ends() -> None:
    loop: dict[str, Any] = an_object(next={"$ref": "#"}, queue=QUEUE)
    assert not delivers(loop, '{"next":{"next":') and not answers_are_choices(loop)
    assert not delivers({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "{")


def test_only_choices_leave_nothing_to_the_message() -> None:
    for closed in (TICKET, {"enum": [1]}, NESTED["properties"]["ticket"], an_object(queue={"allOf": [QUEUE]})):
        assert answers_are_choices(closed), closed
    for open_ended in (EXPLAINED, BY_NAME, LIST, {}, TICKET | {"additionalProperties": True}, {"type": "integer"}):
        assert not answers_are_choices(open_ended), open_ended
