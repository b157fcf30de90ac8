"""The public part of a version's contract, and when an answer under it is free."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from protocol.errors import ProtocolError
from protocol.messages import Answer

MAX_CLOSED_ANSWERS: Final = 64  # a larger set of answers is not counted one by one
CONTRACT_KEY = "contract"  # of a verification's report
EXAMPLES_KEY = "examples"  # of it as well
MAX_SCHEMA_BYTES = 1 << 17  # as the platform keeps it
Logprobs = Literal["none", "confidence", "open"]
# Fields whose numbers a caller could move until a choice changes, and the steps per unit that they may be moved by.
_STEPS: Mapping[str, int] = {
    "presence_penalty": 20,
    "frequency_penalty": 20,
    "repetition_penalty": 20,
    "length_penalty": 1,
}
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


def cut_is_free(*, has_schema: bool, max_tokens: int, asked: int | None, steered: bool) -> bool:
    """Return whether a chat's answer that ends at its limit is free: half of an answer with a schema is worth nothing.

    The limit must be the contract's. A caller who asks for fewer tokens, or steers the answer by a stop string or a
    bias, cuts it himself, and could otherwise read all but its last token for nothing. Gateway and replica each decide
    from the request alone.
    """
    return has_schema and (asked is None or asked >= max_tokens) and not steered


def untold(body: Mapping[str, object], logprobs: Logprobs) -> tuple[str, str] | None:
    """Return the first field by which a body asks for probabilities that its model does not tell, and the rule.

    A bias tells them as well: moved until another token comes first, it is the distance of the two. Penalties do the
    same to tokens that were said, and `length_penalty` to whole answers, so they move in steps alone. Gateway and
    replica each decide from the body. None: the body asks for none of it.
    """
    if logprobs == "open":
        return None
    wanted = body.get("logprobs")
    if wanted is not None and wanted is not False:  # 0 alternatives of a completion are those of its own tokens
        return "logprobs", "this model tells no log-probabilities"
    if body.get("top_logprobs"):
        return "top_logprobs", "this model tells no log-probabilities"
    if body.get("confidence") and logprobs != "confidence":
        return "confidence", "this model does not tell the probabilities of its answers"
    if body.get("logit_bias"):
        return "logit_bias", "a bias would tell log-probabilities, and this model tells none"
    for name, steps in _STEPS.items():
        value = body.get(name)
        if isinstance(value, int | float) and abs(value * steps - round(value * steps)) > 1e-6:
            return name, f"must be a multiple of {1 / steps:g} here, as this model tells no log-probabilities"
    return None


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
