"""Arguments of calls against their schemas: exact, offline, in a process that a stranger's schema may end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serving.constraints import GrammarCompiler
from serving.constraints.arguments import follows
from tests.serving.constraints.test_trials import made_for
from tests.serving.tiny import Tiny

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Ulm"]}, "days": {"type": "integer"}}}
# 2^40 ways to find out that this pattern does not match.
ENDLESS = {"type": "object", "properties": {"a": {"pattern": "^(a|a)*$"}}}


@pytest.mark.parametrize(
    ("schema", "text", "fit"),
    [
        (CITY, '{"city": "Ulm"}', True),
        (CITY, '{"days": 2, "city": "Ulm"}', True),  # in any order
        (CITY, '{"city": "Bonn"}', False),
        (CITY, '{"city": "Ulm"', False),
        ({**CITY, "required": ["city"]}, "{}", False),
        ({"type": "no type"}, "{}", None),
        ({"$ref": "http://127.0.0.1:1/schema"}, "{}", None),
        ({"pattern": "("}, '"a"', None),
    ],
)
def test_arguments_follow_a_schema_or_do_not_or_nobody_can_tell(schema: Any, text: str, fit: bool | None) -> None:
    assert follows(json.dumps(schema), text) is fit


async def test_a_schema_without_an_end_costs_its_process_alone(tiny: Tiny) -> None:
    grammars: GrammarCompiler = made_for(tiny)
    try:
        assert await grammars.follows(json.dumps(ENDLESS), json.dumps({"a": "a" * 40 + "b"})) is None
        assert await grammars.follows(json.dumps(CITY), '{"city": "Ulm"}') is True
    finally:
        grammars.close()
