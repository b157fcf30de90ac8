"""Schemas as clients write them: what only describes does not bind, and what is data is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from serving.constraints import GrammarError, embedded_schema

UNKNOWN = ["uri-reference", "iri", "regex", "json-pointer", "password", "binary", "phone", "int32", "", None, 7]


@pytest.mark.parametrize("value", UNKNOWN)
def test_a_format_that_is_not_enforced_is_an_annotation(value: Any) -> None:
    one = {"type": "string", "format": value}
    plain = {"type": "string"}
    nested = {"properties": {"a": one}, "items": [one], "anyOf": [one, {"items": one}], "$defs": {"x": one}}
    expected = {"properties": {"a": plain}, "items": [plain], "anyOf": [plain, {"items": plain}], "$defs": {"x": plain}}
    for schema, left in ((one, plain), (nested, expected), ({"not": one}, {"not": plain})):
        assert without_options(schema) == left


def test_formats_that_are_enforced_stay() -> None:
    for name in ("date", "date-time", "uuid", "ipv4", "email"):
        schema = {"type": "array", "items": {"type": "string", "format": name}}
        assert without_options(schema) == schema


@pytest.mark.parametrize("dialect", ["http://json-schema.org/draft-07/schema#", "http://json-schema.org/schema#", "x"])
def test_the_dialect_is_an_annotation(dialect: str) -> None:
    assert without_options({"$schema": dialect, "type": "string"}) == {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"format": {"type": "string"}, "$schema": {"type": "string"}}},
        {"const": {"format": "phone", "$schema": "x"}},
        {"enum": [{"format": "phone"}]},
        {"default": {"format": "phone"}, "examples": [{"format": "x"}]},
        {"required": ["format"], "additionalProperties": False},
    ],
)
def test_names_and_values_that_look_like_keywords_stay(schema: dict[str, Any]) -> None:
    assert without_options(schema) == schema


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(1000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarError, match="deep"):
        embedded_schema(schema)


def without_options(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in embedded_schema(schema).items() if key != "x-guidance"}
