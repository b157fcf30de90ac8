"""A grammar is tried before it is accepted: compiled, followed for some tokens, and, if that fails, searched for its
fault. Runs in a child process (`serving.constraints.child`), because a grammar is a program that a stranger wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import llguidance
import numpy as np

from serving.constraints.grammar import Grammar, GrammarError, GrammarSpec, compile_grammar
from serving.constraints.schemas import embedded_schema, subschemas
from serving.errors import ConstraintFailed

_TOKENS = 24
_WALK_SECONDS = 0.5  # of processor time
_PARTS_TRIED = 200

# Which of the allowed tokens is taken: the first, the last, or one in the middle; they lead into different branches.
_CHOICES: tuple[Callable[[np.ndarray], int], ...] = (
    lambda allowed: int(allowed[0]),
    lambda allowed: int(allowed[-1]),
    lambda allowed: int(allowed[len(allowed) // 2]),
)


def try_grammar(spec: GrammarSpec, tokenizer: llguidance.LLTokenizer, vocab_size: int, eos: frozenset[int]) -> None:
    """Raise GrammarError, which names the fault and where it is, unless completions can follow this grammar."""
    try:
        _follow(compile_grammar(spec, tokenizer, vocab_size), eos)
    except GrammarError as error:
        if not spec.parts:
            raise
        raise _located(spec, tokenizer, vocab_size, eos) from error


def _follow(grammar: Grammar, eos: frozenset[int]) -> None:
    until = time.process_time() + _WALK_SECONDS
    try:
        for choose in _CHOICES:
            state = grammar.begin()
            for _ in range(_TOKENS):
                allowed = np.flatnonzero(~state.forbidden())
                if not len(allowed):
                    raise GrammarError("no text follows it")
                token = choose(allowed)
                if token in eos or time.process_time() > until:
                    break
                state.accept([token])
    except ConstraintFailed:
        raise GrammarError("no text follows it, or it is too large") from None


def _located(
    spec: GrammarSpec, tokenizer: llguidance.LLTokenizer, vocab_size: int, eos: frozenset[int]
) -> GrammarError:
    """Return the error of a generated grammar: the part of it that fails alone, down to the smallest such schema."""
    tried = 0

    def fault(schema: dict[str, Any]) -> GrammarError | None:
        nonlocal tried
        tried += 1
        text = json.dumps(embedded_schema(schema), ensure_ascii=False)
        try:
            _follow(compile_grammar(GrammarSpec("json_schema", text), tokenizer, vocab_size), eos)
        except GrammarError as error:
            return error
        return None

    for part in spec.parts:
        schema = json.loads(part.text)
        error, path = fault(schema), part.param
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        inner = subschemas(schema)
        while error is not None and inner and tried < _PARTS_TRIED:
            step, schema = inner.pop(0)
            if (smaller := fault({**shared, **schema})) is not None:
                error, path, inner = smaller, f"{path}.{step}", subschemas(schema)
        if error is not None:
            return GrammarError(str(error), path)
    return GrammarError("together they are too large", spec.parts[0].param)
