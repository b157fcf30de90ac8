"""The public part of a version's contract, and when an answer under it is free."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from protocol.errors import ProtocolError
from protocol.json_text import finished, is_json
from protocol.messages import Answer

MAX_CLOSED_ANSWERS: Final = 64  # a larger set of answers is not counted one by one
CONTRACT_KEY = "contract"  # of a verification's report
EXAMPLES_KEY = "examples"  # of it as well
MAX_SCHEMA_BYTES = 1 << 17  # as the platform keeps it
Logprobs = Literal["none", "confidence", "open"]
_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=2**20)]


class PublicContract(Answer, frozen=True, kw_only=True):
    """How a version wants to be called; the instructions themselves stay in its package.

    instruction_tokens: tokens that every prompt begins with, those of the chat template around them included
    max_tokens: of an answer, where the caller names no limit
    output_schema: the JSON schema that every answer follows; None: free text
    messages: one user text per call, or a conversation
    system: what happens to a caller's own system text
    logprobs: what callers may learn of probabilities: nothing, the one of a whole answer, or those of tokens
    """

    instruction_tokens: _Tokens
    max_tokens: Annotated[int, msgspec.Meta(ge=1, lt=2**20)]
    output_schema: dict[str, Any] | None
    messages: Literal["single", "chat"]
    system: Literal["replace", "append", "refuse"]
    logprobs: Logprobs


def read_public_contract(value: object) -> PublicContract:
    """Check what a replica reported. Raises ProtocolError naming the field and the rule."""
    try:
        found = msgspec.convert(value, PublicContract)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the reported contract: {error}") from None
    if len(msgspec.json.encode(found.output_schema)) > MAX_SCHEMA_BYTES:
        raise ProtocolError(f"the reported contract's schema has more than {MAX_SCHEMA_BYTES} bytes")
    return found


class ExampleCounts(Answer, frozen=True):
    """The model's answers to its contract's own examples: counts alone, because they are sealed.

    run: answered in time
    valid: of those, whole answers of the promised form
    equal: of those, the same as the contract says
    """

    run: Annotated[int, msgspec.Meta(ge=0, le=1_000)]
    valid: Annotated[int, msgspec.Meta(ge=0, le=1_000)]
    equal: Annotated[int, msgspec.Meta(ge=0, le=1_000)]


def read_example_counts(value: object) -> ExampleCounts:
    """Check what a replica reported. Raises ProtocolError."""
    try:
        found = msgspec.convert(value, ExampleCounts)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the reported examples: {error}") from None
    if not found.equal <= found.valid <= found.run:
        raise ProtocolError("the reported examples: equal are at most valid, and valid at most run")
    return found


def delivers(schema: Mapping[str, Any], text: str) -> bool:
    """Return whether a text is worth its price under a contract's schema, though its end may be missing.

    It is when it is whole JSON, or when it already holds every required value that the schema makes a choice of (an
    `enum`, a `const`, a boolean): those are what the answer was asked for. Of choices in lists one is enough, and so is
    one where none is required. Gateway and replica each decide from the text alone.
    """
    if is_json(text):
        return True
    choices = list(_choices(schema, schema))
    if not choices:
        return False
    held = {tuple(None if isinstance(one, int) else one for one in path) for path, _ in finished(text)}
    required = [path for path, needed in choices if needed]
    return all(path in held for path in required) if required else any(path in held for path, _ in choices)


def answers_are_choices(schema: Mapping[str, Any]) -> bool:
    """Return whether all of an answer is choices of the schema, and nothing as long as a caller's message makes it.

    Objects are closed. Lists, numbers and texts, which a message can make long, are none.
    """
    return _all_choices(schema, schema, _DEEPEST)


_ChoicePath = tuple[str | None, ...]  # None: any place of a list
_DEEPEST = 16  # objects, lists and references inside each other that are looked into


def _choices(schema: object, root: Mapping[str, Any], deep: int = _DEEPEST) -> Iterator[tuple[_ChoicePath, bool]]:
    """Yield the path of each value that is a choice, and whether every answer has it."""
    for one in _parts(schema, root, deep):
        if _is_choice(one):
            yield (), True
        properties, required = one.get("properties"), one.get("required") or ()
        for name, inner in properties.items() if isinstance(properties, Mapping) else ():
            for path, needed in _choices(inner, root, deep - 1):
                yield (name, *path), needed and name in required
        for path, needed in _choices(one.get("items"), root, deep - 1):
            yield (None, *path), needed


def _all_choices(schema: object, root: Mapping[str, Any], deep: int) -> bool:
    parts = list(_parts(schema, root, deep))
    if not parts or any(map(_is_choice, parts)):
        return bool(parts)
    closed = [one for one in parts if one.get("additionalProperties") is False and "properties" in one]
    return any(all(_all_choices(inner, root, deep - 1) for inner in one["properties"].values()) for one in closed)


def _parts(schema: object, root: Mapping[str, Any], deep: int) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all that must hold beside it: by `allOf`, and by references within the document."""
    if not isinstance(schema, Mapping) or deep <= 0:
        return
    yield schema
    for one in schema.get("allOf") or ():
        yield from _parts(one, root, deep - 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: object = root
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        yield from _parts(found, root, deep - 1)


def _is_choice(schema: Mapping[str, Any]) -> bool:
    return "const" in schema or "enum" in schema or schema.get("type") in ("boolean", "null")


def closed_answers(schema: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return every answer that the schema allows, as canonical JSON in the schema's order, if there are at most 64.

    Known are `const`, `enum`, `boolean`, `null`, and closed objects of these whose properties are all required. Any
    other schema, and a larger set, returns an empty tuple. An answer's place here is its index in a receipt.
    """
    found = None if schema is None else _values(schema)
    return () if found is None else tuple(dict.fromkeys(canonical_answer(value) for value in found))


def canonical_answer(value: object) -> str:
    """Return a JSON value as the one text by which equal answers are equal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _values(schema: object) -> list[Any] | None:
    """Return the values that a schema allows; None: more than can be counted, or a form that is not known here."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    if isinstance(enum := schema.get("enum"), list | tuple):
        return list(enum) if len(enum) <= MAX_CLOSED_ANSWERS else None
    kind = schema.get("type")
    if kind == "object":
        return _objects(schema)
    simple: dict[object, list[Any]] = {"boolean": [False, True], "null": [None]}
    return simple.get(kind) if isinstance(kind, str) else None


def _objects(schema: Mapping[str, Any]) -> list[Any] | None:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or schema.get("additionalProperties") is not False:
        return None
    if set(properties) != set(schema.get("required", ())):
        return None
    parts, size = [], 1
    for inner in properties.values():
        values = _values(inner)
        if values is None or (size := size * len(values)) > MAX_CLOSED_ANSWERS:
            return None
        parts.append(values)
    return [dict(zip(properties, combination, strict=True)) for combination in itertools.product(*parts)]
