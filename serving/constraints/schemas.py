"""JSON schemas as clients send them, made into schemas that can be enforced."""

from __future__ import annotations

import json
from typing import Any

from serving.constraints.grammar import GrammarError, GrammarSpec

# White space is free, as models write it, but bounded: a weak model would otherwise write nothing else.
_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": r"[ \t\n]{0,24}"}
# Under a creator's contract an answer that its limit cuts off may be free, so white space does not fill it.
_TIGHT_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
# Every other format is an annotation, as JSON Schema has it: "uri-reference", "password", "int32", a word of one's own.
ENFORCED_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
# Keywords whose value is a schema, a list of schemas, or schemas by name.
_SCHEMA = frozenset(
    ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
) | frozenset(("unevaluatedItems", "unevaluatedProperties"))
_LIST = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems"))
_BY_NAME = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_MAX_DEPTH = 200


def json_spec(schema: dict[str, Any] | bool, *, tight: bool = False) -> GrammarSpec:
    """Return the grammar of JSON text that validates against `schema`. Raises GrammarError.

    tight: at most one space, behind a colon or a comma
    """
    embedded = embedded_schema(schema) | ({"x-guidance": _TIGHT_OPTIONS} if tight else {})
    return GrammarSpec("json_schema", json.dumps(embedded, ensure_ascii=False))


def embedded_schema(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """Return `schema` with this server's options instead of the client's, which could switch validation off.

    Raises GrammarError for a schema that allows nothing, or is nested too deeply.
    """
    if schema is False:
        raise GrammarError("the schema allows nothing")
    fields = {} if schema is True else {key: value for key, value in schema.items() if key != "x-guidance"}
    return {"x-guidance": _JSON_OPTIONS, **_without_annotations(fields, 0)}


def subschemas(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the schemas directly inside `schema`, each with its path from there ("properties.city")."""
    found: list[tuple[str, Any]] = []
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, dict):
            found += [(f"{key}.{name}", one) for name, one in value.items()]
        elif key in _LIST and isinstance(value, list):
            found += [(f"{key}[{index}]", one) for index, one in enumerate(value)]
        elif key in _SCHEMA:
            found.append((key, value))
    return [(path, one) for path, one in found if isinstance(one, dict)]


def _without_annotations(schema: Any, depth: int) -> Any:
    """Return a schema without keywords that only describe: the dialect, and formats that nobody enforces."""
    if not isinstance(schema, dict):
        return schema
    if depth > _MAX_DEPTH:
        raise GrammarError(f"the schema is nested more than {_MAX_DEPTH} deep")
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$schema" or (key == "format" and not (isinstance(value, str) and value in ENFORCED_FORMATS)):
            continue
        if key in _BY_NAME and isinstance(value, dict):
            out[key] = {name: _without_annotations(one, depth + 1) for name, one in value.items()}
        elif key in _LIST and isinstance(value, list):
            out[key] = [_without_annotations(one, depth + 1) for one in value]
        elif key in _SCHEMA:
            out[key] = _without_annotations(value, depth + 1)
        else:
            out[key] = value
    return out
