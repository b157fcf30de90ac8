"""`python -m serving.constraints.child`: the process in which grammars are tried.

Reads lines of JSON: first the tokenizer, then one grammar after the other; answers each with a line. It has no keys, no
weights and no network of its own to use, and dies by its limits of processor time and memory without hurting anyone.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from typing import BinaryIO

import llguidance
import msgspec

from serving.constraints.arguments import follows
from serving.constraints.grammar import GrammarError, GrammarSpec
from serving.constraints.trial import try_grammar

ARGUMENT_SECONDS = 1.0  # of processor time, for the arguments of one call


class Vocabulary(msgspec.Struct):
    """The first line. cpu_seconds: of one grammar; memory_bytes: of the process, beyond what the vocabulary takes."""

    tokenizer: str
    vocab_size: int
    eos: list[int]
    cpu_seconds: float
    memory_bytes: int


class Arguments(msgspec.Struct):
    """The arguments of one call, to be held against its function's schema; both as JSON."""

    schema: str
    text: str


class Question(msgspec.Struct):
    """A line after the first: one of the two."""

    grammar: GrammarSpec | None = None
    arguments: Arguments | None = None


class Verdict(msgspec.Struct):
    """The answer to each line: no error for a grammar that can be followed. param: where the fault is, if known.

    fit: of arguments, whether they follow their schema; None: nobody can tell, because it is none
    """

    error: str | None = None
    param: str | None = None
    fit: bool | None = None


def main(lines: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.set_int_max_str_digits(0)  # a grammar lets integers be as long as an answer; the process's limits end it
    first = msgspec.json.decode(lines.readline(), type=Vocabulary)
    tokenizer = llguidance.LLTokenizer(first.tokenizer, n_vocab=first.vocab_size, eos_token=first.eos)
    eos = frozenset(first.eos)
    _limit_memory(first.memory_bytes)
    _answer(answers, Verdict())
    while line := lines.readline():
        question, verdict = msgspec.json.decode(line, type=Question), Verdict()
        _limit_time(first.cpu_seconds if question.arguments is None else ARGUMENT_SECONDS)
        try:
            if question.arguments is not None:
                verdict = Verdict(fit=follows(question.arguments.schema, question.arguments.text))
            elif question.grammar is not None:
                try_grammar(question.grammar, tokenizer, first.vocab_size, eos)
        except GrammarError as error:
            verdict = Verdict(str(error), error.param)
        except (MemoryError, RecursionError):
            verdict = Verdict("it is too large")
        _answer(answers, verdict)


def _answer(answers: BinaryIO, verdict: Verdict) -> None:
    answers.write(msgspec.json.encode(verdict) + b"\n")
    answers.flush()


def _limit_time(seconds: float) -> None:
    """Let the kernel end this process after `seconds` more of processor time, however busy the machine is."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, most))


def _limit_memory(more: int) -> None:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
