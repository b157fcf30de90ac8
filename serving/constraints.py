"""Grammars that completions must follow: JSON Schema, regular expressions and Lark, compiled by llguidance.

Compiling is limited in size and work and happens on threads of its own; a compiled grammar is shared by every request
that asks for the same text. A mask takes some ten microseconds for ordinary schemas.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import llguidance
import numpy as np

from serving.core import ConstraintState
from serving.errors import ConstraintFailed

MAX_GRAMMAR_CHARS = 1 << 16
COMPILE_SECONDS = 5.0
_CACHED = 128

# Work limits of one grammar. "Fuel" buys about 50,000 units a millisecond while compiling and 14,000 in a mask.
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,  # verbose errors would contain generated text
)
# White space is free, as models write it, but bounded: a weak model would otherwise write nothing else.
_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": r"[ \t\n]{0,24}"}


class GrammarError(ValueError):
    """The grammar does not parse, asks for what is not supported, or is too large. The message may be shown."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar to compile: the text of a JSON schema, a regular expression (Rust's syntax), or a Lark grammar."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str


def json_spec(schema: dict[str, Any] | bool) -> GrammarSpec:
    """Return the grammar of JSON text that validates against `schema`."""
    return GrammarSpec("json_schema", json.dumps(embedded_schema(schema), ensure_ascii=False))


def embedded_schema(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """Return `schema` with this server's options instead of the client's, which could switch validation off."""
    if schema is False:
        raise GrammarError("the schema allows nothing")
    fields = {} if schema is True else {key: value for key, value in schema.items() if key != "x-guidance"}
    return {"x-guidance": _JSON_OPTIONS, **fields}


class GrammarCompiler:
    """Compiles for one tokenizer. Thread-safe; the tokenizer's trie (a quarter of a second, and its JSON, megabytes of
    it) is made once, on first use."""

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._json, self._vocab, self._eos = tokenizer_json, vocab_size, sorted(eos_token_ids)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._cache: OrderedDict[GrammarSpec, Grammar] = OrderedDict()
        self._lock, self._cache_lock = threading.Lock(), threading.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")

    async def compile(self, spec: GrammarSpec) -> Grammar:
        """Compile a grammar. Raises GrammarError, also when it takes longer than COMPILE_SECONDS."""
        if len(spec.text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"it is longer than {MAX_GRAMMAR_CHARS} characters")
        with self._cache_lock:
            if (known := self._cache.get(spec)) is not None:
                self._cache.move_to_end(spec)
                return known
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._compile, spec)
        try:
            return await asyncio.wait_for(work, COMPILE_SECONDS)
        except TimeoutError:
            raise GrammarError("it takes too long to compile") from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, spec: GrammarSpec) -> Grammar:
        with self._lock:
            if self._tokenizer is None:
                if not self._eos:
                    raise GrammarError("this model has no end-of-sequence token")
                self._tokenizer = llguidance.LLTokenizer(self._json(), n_vocab=self._vocab, eos_token=self._eos)
        matcher = llguidance.LLMatcher
        try:
            if spec.kind == "json_schema":
                grammar = matcher.grammar_from_json_schema(spec.text)
            elif spec.kind == "regex":
                grammar = matcher.grammar_from_regex(spec.text)
            else:
                grammar = matcher.grammar_from_lark(spec.text)
            compiled = matcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        except (ValueError, TypeError) as error:
            raise GrammarError(_short(str(error))) from None
        if compiled.is_error():
            raise GrammarError(_short(compiled.get_error()))
        made = Grammar(compiled, self._vocab)
        made.begin().forbidden()  # the first mask does the most work: a grammar that fails at once is refused here
        with self._cache_lock:
            self._cache[spec] = made
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return made


class Grammar:
    """`serving.core.Constraint`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab = matcher, vocab_size

    def begin(self) -> ConstraintState:
        return _State(self._matcher.deep_copy(), self._vocab)


class _State:
    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab = matcher, vocab_size
        self._mask = np.zeros(-(-vocab_size // 32), np.int32)

    def accept(self, token_ids: Sequence[int]) -> None:
        if token_ids and not self._matcher.consume_tokens(list(token_ids)):
            raise ConstraintFailed("the output's grammar reached one of its limits")

    def forbidden(self) -> np.ndarray:
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            raise ConstraintFailed("the output's grammar reached one of its limits")
        bits = np.unpackbits(np.invert(self._mask).view(np.uint8), bitorder="little")
        return bits[: self._vocab].view(np.bool_)


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 300 else line[:300] + "…"
