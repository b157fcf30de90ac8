"""One grammar, compiled by llguidance: its text, its limits, and the state of a completion that follows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import llguidance
import numpy as np

from serving.core import ConstraintState
from serving.errors import ConstraintFailed

# Work limits of one grammar. "Fuel" buys about 50,000 units a millisecond while compiling and 14,000 in a mask.
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,  # verbose errors would contain generated text
)


class GrammarError(ValueError):
    """The grammar does not parse, asks for what is not supported, or is too large. The message may be shown.

    param: the field of the request that holds the fault, where that is known
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SchemaPart:
    """A JSON schema inside a grammar that was generated: `param` is the field of the request that it comes from."""

    param: str
    text: str


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar to compile: the text of a JSON schema, a regular expression (Rust's syntax), or a Lark grammar.

    parts: the schemas of a generated grammar, whose text no client has seen: a fault is named by its part
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str
    parts: tuple[SchemaPart, ...] = ()


class Grammar:
    """`serving.core.Constraint`."""

    def __init__(
        self, matcher: llguidance.LLMatcher, vocab_size: int, compact: llguidance.LLMatcher | None = None
    ) -> None:
        self._matcher, self._vocab = matcher, vocab_size
        self._compact = matcher if compact is None else compact

    def begin(self) -> ConstraintState:
        return _State(self._matcher.deep_copy(), self._vocab)

    def begin_draft(self) -> ConstraintState:
        return _State(self._compact.deep_copy(), self._vocab)


class _State:
    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab = matcher, vocab_size
        self._mask = np.zeros(-(-vocab_size // 32), np.int32)

    def accept(self, token_ids: Sequence[int]) -> None:
        if token_ids and not self._matcher.consume_tokens(list(token_ids)):
            raise ConstraintFailed("the output's grammar reached one of its limits")

    def forbidden(self) -> np.ndarray:
        bits = np.unpackbits(np.invert(self.allowed_bits()).view(np.uint8), bitorder="little")
        return bits[: self._vocab].view(np.bool_)

    def allowed_bits(self) -> np.ndarray:
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            raise ConstraintFailed("the output's grammar reached one of its limits")
        return self._mask

    def forced(self) -> tuple[int, ...]:
        tokens = tuple(self._matcher.compute_ff_tokens())
        if self._matcher.is_error():
            raise ConstraintFailed("the output's grammar reached one of its limits")
        return tokens


def compile_grammar(spec: GrammarSpec, tokenizer: llguidance.LLTokenizer, vocab_size: int) -> Grammar:
    """Compile a grammar within its limits. Raises GrammarError; the message is the library's, in one line."""
    matcher = llguidance.LLMatcher
    try:
        if spec.kind == "json_schema":
            grammar = matcher.grammar_from_json_schema(spec.text)
        elif spec.kind == "regex":
            grammar = matcher.grammar_from_regex(spec.text)
        else:
            grammar = matcher.grammar_from_lark(spec.text)
        compiled = matcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    except (ValueError, TypeError) as error:
        raise GrammarError(_short(str(error))) from None
    if compiled.is_error():
        raise GrammarError(_short(compiled.get_error()))
    return Grammar(compiled, vocab_size, _compact(spec, tokenizer))


def _compact(spec: GrammarSpec, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher | None:
    """Return the schema without optional white space, which leaves the fewest choices; None for other grammars."""
    if spec.kind != "json_schema":
        return None
    schema = {**json.loads(spec.text), "x-guidance": {"whitespace_flexible": False}}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    compact = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    return None if compact.is_error() else compact


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 300 else line[:300] + "…"
