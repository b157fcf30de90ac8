"""The rows of an evaluation, and how an answer is judged: what the creator's machine and the platform must agree on.

A set is JSONL: one object in each line, with `message` (a user's text) or `messages` (a chat), and `expected`. Both
sides read it by `read_rows`, so what the platform would refuse is refused before it is sealed. No error has a text.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from protocol.encoding import foreign_beginning
from protocol.errors import ProtocolError
from protocol.json_text import value_of

MAX_ROWS = 10_000
MAX_ROW_BYTES = 1 << 16
MAX_SET_BYTES = 1 << 26
MAX_MESSAGES = 64
_ROLES = frozenset({"system", "developer", "user", "assistant"})

_Field = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class Scorer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One of a closed list of ways to judge an answer.

    json: the answer is the expected JSON value
    fields: the answer's `fields` have the expected values, whatever else it holds
    label: the answer's `field`, or the whole answer, is the expected label; gives a macro F1 as well
    regex: `expected` is a pattern that the answer's `field`, or the whole answer, matches from end to end
    number: the answer's `field`, or the whole answer, is within `tolerance` of the expected number
    """

    kind: Literal["json", "fields", "label", "regex", "number"]
    field: _Field | None = None
    fields: Annotated[tuple[_Field, ...], msgspec.Meta(max_length=16)] = ()
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0

    @property
    def words(self) -> str:
        """Return what is measured, for a reader."""
        of = f"“{self.field}”" if self.field else "the answer"
        return {
            "json": "the whole answer, as JSON",
            "fields": f"{', '.join(f'“{one}”' for one in self.fields)} of the answer",
            "label": f"the label {of}" if self.field else "the answer, a label",
            "regex": f"{of}, by a pattern",
            "number": f"{of}, within {self.tolerance:g}",
        }[self.kind]


class RowRefused(ProtocolError):
    """A row, counted from 1, breaks a rule; 0: the set as a whole does."""

    def __init__(self, row: int, rule: str) -> None:
        super().__init__(f"row {row}: {rule}" if row else rule)
        self.row = row
        self.rule = rule


@dataclass(frozen=True, slots=True, repr=False)
class EvalRow:
    """One row. `messages` are those of a chat completion; `expected` is what the scorer compares an answer with."""

    messages: list[dict[str, str]]
    expected: Any


def read_scorer(value: object) -> Scorer:
    """Check a scorer as a client wrote it. Raises ProtocolError naming the field and the rule."""
    try:
        scorer = msgspec.convert(value, Scorer)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"scorer: {error}") from None
    if (scorer.kind == "fields") != bool(scorer.fields) or len(set(scorer.fields)) != len(scorer.fields):
        raise ProtocolError("scorer: `fields` belongs to the kind fields, which needs 1 to 16 of them, each once")
    if scorer.field is not None and scorer.kind in ("json", "fields"):
        raise ProtocolError(f"scorer: the kind {scorer.kind} has no `field`")
    if scorer.tolerance and scorer.kind != "number":
        raise ProtocolError("scorer: `tolerance` belongs to the kind number")
    return scorer


def read_rows(data: bytes, scorer: Scorer | None, output_schema: Mapping[str, Any] | None) -> list[EvalRow]:
    """Return the rows of a set. `output_schema` is that of the version's contract, None without one.

    Without a scorer, what is expected may be anything.

    Raises RowRefused for the first row that breaks a rule.
    """
    if len(data) > MAX_SET_BYTES:
        raise RowRefused(0, f"a set has at most {MAX_SET_BYTES >> 20} MB")
    lines = data.removesuffix(b"\n").split(b"\n")
    if len(lines) > MAX_ROWS:
        raise RowRefused(0, f"a set has at most {MAX_ROWS:,} rows")
    rows, seen = [], dict[bytes, int]()
    for number, line in enumerate(lines, start=1):
        row = _row(number, line)
        if scorer is not None:
            _check_expected(number, row.expected, scorer, output_schema)
        earlier = seen.setdefault(fingerprint(row.messages), number)
        if earlier != number:
            raise RowRefused(number, f"repeats the messages of row {earlier}")
        rows.append(row)
    return rows


def fingerprint(messages: list[dict[str, str]]) -> bytes:
    """Return SHA-256 of the messages, without differences in case, white space and forms of the same character."""
    hasher = hashlib.sha256()
    for message in messages:
        text = " ".join(unicodedata.normalize("NFKC", message["content"]).casefold().split())
        hasher.update(f"{message['role']}\0{text}\0".encode("utf-8", "surrogatepass"))
    return hasher.digest()


def _row(number: int, line: bytes) -> EvalRow:
    if len(line) > MAX_ROW_BYTES:
        raise RowRefused(number, f"must have at most {MAX_ROW_BYTES >> 10} KB, has {len(line):,} bytes")
    try:
        value = value_of(line.decode("utf-8", "strict"))
    except ValueError as error:
        rule = "must be UTF-8" if isinstance(error, UnicodeDecodeError) else "must be one JSON object in one line"
        raise RowRefused(number, foreign_beginning(line) or rule) from None
    if not isinstance(value, dict):
        raise RowRefused(number, "must be one JSON object in one line")
    names = set(value)
    if names not in ({"message", "expected"}, {"messages", "expected"}):
        raise RowRefused(number, "must have `expected`, and `message` or `messages`, and nothing else")
    messages = value["messages"] if "messages" in names else [{"role": "user", "content": value["message"]}]
    return EvalRow(_messages(number, messages), value["expected"])


def _messages(number: int, messages: object) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise RowRefused(number, f"`messages` must be a list of 1 to {MAX_MESSAGES}")
    for message in messages:
        if not isinstance(message, dict) or set(message) != {"role", "content"} or message["role"] not in _ROLES:
            raise RowRefused(number, "each message must be an object of `role` and `content`")
        content = message["content"]
        if not isinstance(content, str) or not content.strip():
            raise RowRefused(number, "each message's content must be text")
        if any("\ud800" <= character <= "\udfff" for character in content):
            raise RowRefused(number, "must be UTF-8")
    if messages[-1]["role"] != "user":
        raise RowRefused(number, "the last message must be the user's")
    return messages


# -- what a scorer compares ------------------------------------------------------------------------------------------

MISSING: Final = object()  # an answer has no such part: equal to nothing


def json_value(text: object) -> Any:
    """Return the value of JSON text; MISSING for text that is none. A value that is no text is itself."""
    if not isinstance(text, str):
        return text
    try:
        return value_of(text)
    except ValueError:
        return MISSING


def part_of(value: object, field: str | None) -> Any:
    """Return a field of an answer or an expectation, the whole of it without a field; MISSING if there is none."""
    if field is None:
        return value
    value = json_value(value)
    return value.get(field, MISSING) if isinstance(value, dict) else MISSING


def expected_part(expected: object, field: str | None) -> Any:
    """Return what an answer's field is compared with: the same field of an expected object, or `expected` itself."""
    found = part_of(expected, field)
    return expected if found is MISSING and not isinstance(json_value(expected), dict) else found


def number_of(value: object) -> float | None:
    """Return the number that a value, or its text, is; None for any other."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value.strip() if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def _check_expected(row: int, expected: Any, scorer: Scorer, schema: Mapping[str, Any] | None) -> None:
    wanted = expected_part(expected, scorer.field)
    match scorer.kind:
        case "json":
            if json_value(expected) is MISSING:
                raise RowRefused(row, "`expected` must be a JSON value, or its text")
        case "fields":
            for field in scorer.fields:
                found = part_of(expected, field)
                if found is MISSING:
                    raise RowRefused(row, f"`expected` must have the field {field!r}")
                _check_allowed(row, found, field, schema)
        case "label":
            if not isinstance(wanted, str) or not 1 <= len(wanted) <= 200:
                raise RowRefused(row, "`expected` must be a label of 1 to 200 characters")
            _check_allowed(row, wanted, scorer.field, schema)
        case "regex":
            if not isinstance(wanted, str) or not 1 <= len(wanted) <= 1000:
                raise RowRefused(row, "`expected` must be a pattern of 1 to 1,000 characters")
        case "number":
            if number_of(wanted) is None:
                raise RowRefused(row, "`expected` must be a number")


def _check_allowed(row: int, value: object, field: str | None, schema: Mapping[str, Any] | None) -> None:
    """Refuse what no answer can be: the contract's schema names the values of this field, and this is none of them."""
    part: Any = schema
    if field is not None and isinstance(part, dict):
        properties = part.get("properties")
        part = properties.get(field) if isinstance(properties, dict) else None
    allowed = part.get("enum") if isinstance(part, dict) else None
    if isinstance(allowed, list) and not any(type(value) is type(one) and value == one for one in allowed):
        name = f" of {field!r}" if field else ""
        raise RowRefused(row, f"`expected` is outside the values{name} that the model's contract allows")
