"""PEFT's answers of an adapter, `reference.json`: token ids, which a replica's answers are compared with once.

They are computed on the creator's machine and sealed with the weights, because the prompts are the creator's own.
Format: docs/converting.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealed_weights.errors import FormatError, IntakeError
from sealed_weights.files import open_regular, read_exactly
from sealed_weights.payload import CONFIG_NAME, CONTRACT_NAME, MAX_REFERENCE, REFERENCE_NAME, TENSORS_NAME
from sealed_weights.strict_json import JsonRuleError, parse_object

REFERENCE_FORMAT = 1
MAX_ANSWERS = 32
MAX_PROMPT = 1_024  # tokens
MAX_TOKENS = 64  # of one answer
MAX_TOKEN_ID = 1 << 24
DTYPES = ("float32", "bfloat16", "float16")

_FIELDS = {"reference", "of", "dtype", "answers"}
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, repr=False)
class ReferenceAnswer:
    """A prompt and PEFT's greedy answer to it, both as token ids of the base. Both are secret."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Reference:
    """PEFT's answers. It has no repr, because prompts and answers are secret.

    of: `source_digest` of the adapter that answered, so that no other one is sealed with these answers
    dtype: of the base's weights under PEFT
    """

    of: str
    dtype: str
    answers: tuple[ReferenceAnswer, ...]

    def to_bytes(self) -> bytes:
        """Return the one form in which a reference is sealed: no white space, UTF-8."""
        answers = [{"prompt": one.prompt, "tokens": one.tokens} for one in self.answers]
        fields = {"reference": REFERENCE_FORMAT, "of": self.of, "dtype": self.dtype, "answers": answers}
        return json.dumps(fields, separators=(",", ":")).encode()


def parse_reference(data: bytes) -> Reference:
    """Parse and check everything that needs no model. Raises `IntakeError` naming the field and the rule."""
    try:
        fields = parse_object(data, MAX_REFERENCE)
    except JsonRuleError as error:
        raise IntakeError(REFERENCE_NAME, str(error)) from None
    if fields.keys() != _FIELDS:
        raise IntakeError(REFERENCE_NAME, f"must have exactly the fields {', '.join(sorted(_FIELDS))}")
    if type(fields["reference"]) is not int or fields["reference"] != REFERENCE_FORMAT:
        raise _refused("reference", f"must be {REFERENCE_FORMAT}, the version of this format")
    if not isinstance(fields["of"], str) or not _DIGEST.fullmatch(fields["of"]):
        raise _refused("of", "must be 64 hex digits")
    if fields["dtype"] not in DTYPES:
        raise _refused("dtype", f"must be one of {', '.join(DTYPES)}")
    answers = fields["answers"]
    if not isinstance(answers, list) or not 1 <= len(answers) <= MAX_ANSWERS:
        raise _refused("answers", f"must be a list of 1 to {MAX_ANSWERS}")
    return Reference(fields["of"], fields["dtype"], tuple(_answer(index, one) for index, one in enumerate(answers)))


def _answer(index: int, value: Any) -> ReferenceAnswer:
    name = f"answers[{index}]"
    if not isinstance(value, dict) or value.keys() != {"prompt", "tokens"}:
        raise _refused(name, "must have exactly the fields prompt, tokens")
    return ReferenceAnswer(
        _tokens(value["prompt"], f"{name}.prompt", MAX_PROMPT), _tokens(value["tokens"], f"{name}.tokens", MAX_TOKENS)
    )


def _tokens(value: Any, name: str, most: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise _refused(name, f"must be a list of 1 to {most} token ids")
    if not all(type(one) is int and 0 <= one < MAX_TOKEN_ID for one in value):
        raise _refused(name, "must hold token ids")
    return tuple(value)


def _refused(name: str, rule: str) -> IntakeError:
    return IntakeError(f"{REFERENCE_NAME} {name}", rule)


def read_reference(folder: Path) -> Reference | None:
    """Return the reference of an adapter's folder, None if it has none.

    Raises `IntakeError` for a malformed one and for one of other files than those beside it, `FormatError` for a file
    that is special or cannot be read.
    """
    path = folder / REFERENCE_NAME
    if not path.exists() and not path.is_symlink():
        return None
    with open_regular(path, follow_links=True) as (file, size):
        if size > MAX_REFERENCE:
            raise IntakeError(REFERENCE_NAME, f"must be at most {MAX_REFERENCE} bytes")
        data = bytearray(size)
        read_exactly(file, memoryview(data), 0)
    found = parse_reference(bytes(data))
    if found.of != source_digest(folder):
        rule = "is of another adapter or contract than the files beside it: run `intarsia check --against-peft` again"
        raise IntakeError(REFERENCE_NAME, f"{rule}, or delete it")
    return found


def reference_bytes(folder: Path) -> bytes | None:
    """Return the bytes that `seal_package` puts beside the weights. Raises `FormatError` also for a malformed one."""
    try:
        reference = read_reference(folder)
    except IntakeError as error:
        raise FormatError(str(error)) from None
    return None if reference is None else reference.to_bytes()


def source_digest(folder: Path) -> str:
    """Return SHA-256 (64 hex digits) over the adapter's files and its contract, which decide what it answers."""
    hasher = hashlib.sha256()
    for name in (CONFIG_NAME, TENSORS_NAME, CONTRACT_NAME):
        path, one = folder / name, hashlib.sha256()
        if path.exists():
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    one.update(block)
        hasher.update(one.digest())
    return hasher.hexdigest()
