"""The reference of both APIs, read out of the OpenAPI description."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator

METHODS = ("get", "post", "put", "patch", "delete", "head")
MOST_LEVELS = 3  # of fields in fields; deeper ones are in the description itself


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of a body; `level` says how deep it lies in others."""

    name: str
    kind: str
    text: str
    required: bool
    level: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One status of an operation, with the fields of its body where they say more than the envelope does."""

    status: str
    text: str
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    id: str
    method: str
    path: str
    text: str
    scopes: tuple[str, ...]
    public: bool
    staff_only: bool
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """The operations of one part of the APIs; `name` is in its address."""

    name: str
    operations: tuple[Operation, ...]

    @property
    def title(self) -> str:
        return self.name.replace("-", " ").capitalize()


@cache
def groups() -> tuple[Group, ...]:
    """Return every operation of both APIs, predictions first. Made once per process: it follows from the code."""
    document: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    found: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                tag = next(iter(methods[method].get("tags", ())), "other")
                found.setdefault(tag, []).append(_operation(path, method, methods[method], document))
    order = sorted(found, key=lambda tag: (tag != "predictions", tag))
    return tuple(Group(tag, tuple(found[tag])) for tag in order)


def group_named(name: str) -> Group | None:
    """Return one part, or None."""
    return next((group for group in groups() if group.name == name), None)


def _operation(path: str, method: str, written: dict[str, Any], document: dict[str, Any]) -> Operation:
    parameters = tuple(
        Field(
            f"{one['name']} ({one['in']})", _kind(one["schema"]), one.get("description", ""), bool(one.get("required"))
        )
        for one in written.get("parameters", ())
    )
    return Operation(
        id=written["operationId"],
        method=method.upper(),
        path=path,
        text=written.get("description", ""),
        scopes=tuple(written.get("x-scopes", ())),
        public=not written.get("security"),
        staff_only=bool(written.get("x-staff-only")),
        parameters=parameters,
        body=_content_fields(written.get("requestBody", {}), document),
        answers=tuple(
            Answer(status, one["description"], _content_fields(one, document) if status < "300" else ())
            for status, one in written["responses"].items()
        ),
    )


def _content_fields(holder: dict[str, Any], document: dict[str, Any]) -> tuple[Field, ...]:
    schema = holder.get("content", {}).get("application/json", {}).get("schema")
    return () if schema is None else tuple(_fields(schema, document, level=0))


def _fields(schema: dict[str, Any], document: dict[str, Any], *, level: int) -> list[Field]:
    """Return the fields of an object, or of the objects in a list, each followed by its own."""
    schema = _resolved(schema, document)
    if schema.get("type") == "array":
        return _fields(schema["items"], document, level=level)
    found: list[Field] = []
    required = set(schema.get("required", ()))
    for name, inner in schema.get("properties", {}).items():
        found.append(Field(name, _kind(inner, document), _text(inner, document), name in required, level))
        if level + 1 < MOST_LEVELS:
            found += _fields(inner, document, level=level + 1)
    return found


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference; of alternatives take the one that is an object."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    options = [
        one for one in schema.get("anyOf", schema.get("oneOf", schema.get("allOf", ()))) if one.get("type") != "null"
    ]
    return _resolved(options[0], document) if len(options) == 1 else schema


def _text(schema: dict[str, Any], document: dict[str, Any]) -> str:
    return str(schema.get("description") or _resolved(schema, document).get("description", ""))


def _kind(schema: dict[str, Any], document: dict[str, Any] | None = None) -> str:
    """Return the type as people read it: integer, text or null, one of …"""
    if "$ref" in schema:
        return "object" if document is None else _kind(_resolved(schema, document), document)
    if "const" in schema:
        return f"“{schema['const']}”"
    if "enum" in schema:
        return "one of " + ", ".join(str(one) for one in schema["enum"] if one is not None)
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_kind(one, document) for one in schema[word]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}), document)}"
    return str({"string": schema.get("format", "text")}.get(kind, kind))
