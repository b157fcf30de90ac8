"""The contract of a version, `contract.json`: how the model wants to be called, and what its answers look like.

It is sealed with the weights, because the instructions are the creator's property as much as the weights are. Format:
docs/contract.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from sealed_weights.errors import FormatError, IntakeError
from sealed_weights.files import open_regular, read_exactly
from sealed_weights.payload import CONTRACT_NAME, MAX_CONTRACT
from sealed_weights.strict_json import JsonRuleError, parse_object

Messages = Literal["single", "chat"]
System = Literal["replace", "append", "refuse"]
Logprobs = Literal["none", "confidence", "open"]

CONTRACT_FORMAT = 1
MAX_INSTRUCTIONS = 32_000  # characters
MAX_SCHEMA = 16_384  # characters of JSON: it is public, and shown on the model's page
MAX_SCHEMA_DEPTH = 32
MAX_MAX_TOKENS = 131_072
MAX_EXAMPLES = 16
MAX_EXAMPLE = 8_000  # characters of a message, and of an answer

_REQUIRED = ("contract", "instructions", "max_tokens")
_OPTIONAL = ("messages", "output", "sampling", "system", "logprobs", "examples")
# Each sampling default: its least and its largest value.
_SAMPLING: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (0, 1_000_000),
}


@dataclass(frozen=True, slots=True, repr=False)
class ContractExample:
    """A message and the answer that the model should give to it. Both are secret."""

    message: str
    answer: str


@dataclass(frozen=True, slots=True, repr=False)
class Contract:
    """The parsed contract. It has no repr, because instructions and examples are secret.

    instructions: the system text that every call begins with
    messages: `single` is one user text per call, `chat` a conversation
    output: the JSON schema that every answer follows; None: free text
    max_tokens: of an answer, where the caller names no limit
    sampling: defaults of temperature, top_p, min_p and top_k
    system: what happens to a caller's own system text
    logprobs: what callers may learn of probabilities: nothing, the one of a whole answer, or those of tokens
    """

    instructions: str
    messages: Messages
    output: Mapping[str, Any] | None
    max_tokens: int
    sampling: Mapping[str, float]
    system: System
    logprobs: Logprobs
    examples: tuple[ContractExample, ...]

    def to_bytes(self) -> bytes:
        """Return the one form in which a contract is sealed: every field, no white space, UTF-8.

        A schema keeps the order of its properties, because answers follow that order.
        """
        fields = {
            "contract": CONTRACT_FORMAT,
            "instructions": self.instructions,
            "messages": self.messages,
            "output": "text" if self.output is None else {"schema": self.output},
            "max_tokens": self.max_tokens,
            "sampling": dict(sorted(self.sampling.items())),
            "system": self.system,
            "logprobs": self.logprobs,
            "examples": [{"message": one.message, "answer": one.answer} for one in self.examples],
        }
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def read_contract(folder: Path) -> Contract | None:
    """Return the contract of an adapter's folder, None if it has no `contract.json`.

    Raises `IntakeError` naming the field and the rule, `FormatError` for a file that is special or cannot be read.
    """
    path = folder / CONTRACT_NAME
    if not path.exists() and not path.is_symlink():
        return None
    with open_regular(path, follow_links=True) as (file, size):
        if size > MAX_CONTRACT:
            raise IntakeError(CONTRACT_NAME, f"must be at most {MAX_CONTRACT} bytes")
        data = bytearray(size)
        read_exactly(file, memoryview(data), 0)
    return parse_contract(bytes(data))


def parse_contract(data: bytes) -> Contract:
    """Parse and check everything that needs no tokenizer. Raises `IntakeError` naming the field and the rule."""
    try:
        fields = parse_object(data, MAX_CONTRACT)
    except JsonRuleError as error:
        raise IntakeError(CONTRACT_NAME, str(error)) from None
    for name in fields:
        if name not in _REQUIRED + _OPTIONAL:
            raise IntakeError(f"{CONTRACT_NAME} {name}", f"is unknown; {', '.join(_REQUIRED + _OPTIONAL)} are known")
    for name in _REQUIRED:
        if name not in fields:
            raise _refused(name, "is missing")
    if type(fields["contract"]) is not int or fields["contract"] != CONTRACT_FORMAT:
        raise _refused("contract", f"must be {CONTRACT_FORMAT}, the version of this format")
    output = _output(fields.get("output", "text"))
    contract = Contract(
        instructions=_text(fields["instructions"], "instructions", MAX_INSTRUCTIONS, least=0),
        messages=cast(Messages, _word(fields, "messages", ("chat", "single"))),
        output=output,
        max_tokens=_whole(fields["max_tokens"], "max_tokens", 1, MAX_MAX_TOKENS),
        sampling=_sampling(fields.get("sampling", {})),
        system=cast(System, _word(fields, "system", ("replace", "append", "refuse"))),
        logprobs=cast(Logprobs, _word(fields, "logprobs", ("none", "confidence", "open"))),
        examples=_examples(fields.get("examples", []), json_answers=output is not None),
    )
    if len(contract.to_bytes()) > MAX_CONTRACT:
        raise IntakeError(CONTRACT_NAME, f"must be at most {MAX_CONTRACT} bytes")
    return contract


def _refused(name: str, rule: str) -> IntakeError:
    return IntakeError(f"{CONTRACT_NAME} {name}", rule)


def _word(fields: Mapping[str, Any], name: str, words: tuple[str, ...]) -> str:
    """Return one of `words`, the first by default."""
    value = fields.get(name, words[0])
    if value not in words:
        raise _refused(name, f"must be {' or '.join(words)}")
    return str(value)


def _text(value: object, name: str, most: int, *, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise _refused(name, f"must be text of {least} to {most} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refused(name, "must be Unicode text without lone surrogates") from None
    return value


def _whole(value: object, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _refused(name, f"must be a whole number from {least} to {most}")
    return value


def _output(value: object) -> dict[str, Any] | None:
    if value == "text":
        return None
    if not isinstance(value, dict) or value.keys() != {"schema"} or not isinstance(value["schema"], dict):
        raise _refused("output", 'must be "text", or {"schema": a JSON schema}')
    schema: dict[str, Any] = value["schema"]
    if _deeper(schema, MAX_SCHEMA_DEPTH):
        raise _refused("output.schema", f"must be nested at most {MAX_SCHEMA_DEPTH} deep")
    try:
        written = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        written.encode()
    except ValueError:  # an infinite number, or a lone surrogate
        raise _refused("output.schema", "must hold finite numbers and Unicode text") from None
    if len(written) > MAX_SCHEMA:
        raise _refused("output.schema", f"must be at most {MAX_SCHEMA} characters")
    return schema


def _deeper(value: object, levels: int) -> bool:
    """Return whether `value` is nested more than `levels` deep, without looking further than that."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


def _sampling(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _refused("sampling", "must be an object")
    for name, number in value.items():
        if name not in _SAMPLING:
            raise _refused(f"sampling.{name}", f"is unknown; {', '.join(_SAMPLING)} are known")
        least, most = _SAMPLING[name]
        kinds = (int,) if name == "top_k" else (int, float)
        if type(number) not in kinds or not math.isfinite(number) or not least <= number <= most:
            raise _refused(f"sampling.{name}", f"must be a number from {least} to {most}")
    return value


def _examples(value: object, *, json_answers: bool) -> tuple[ContractExample, ...]:
    if not isinstance(value, list) or len(value) > MAX_EXAMPLES:
        raise _refused("examples", f"must be a list of at most {MAX_EXAMPLES}")
    found = []
    for index, one in enumerate(value):
        name = f"examples[{index}]"
        if not isinstance(one, dict) or one.keys() != {"message", "answer"}:
            raise _refused(name, "must have exactly the fields answer, message")
        message = _text(one["message"], f"{name}.message", MAX_EXAMPLE)
        answer = _text(one["answer"], f"{name}.answer", MAX_EXAMPLE)
        if json_answers:
            _require_json(answer, f"{name}.answer")
        found.append(ContractExample(message, answer))
    return tuple(found)


def _require_json(text: str, name: str) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise _refused(name, "must be JSON, as the output schema asks") from None


def contract_bytes(folder: Path) -> bytes | None:
    """Return the bytes that `seal_package` puts beside the weights; raises as `read_contract` does.

    `FormatError` names the rule of a contract that is not one: a package with a contract that no replica reads would be
    sold to nobody.
    """
    try:
        contract = read_contract(folder)
    except IntakeError as error:
        raise FormatError(str(error)) from None
    return None if contract is None else contract.to_bytes()
