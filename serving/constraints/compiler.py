"""Compilation of grammars for one tokenizer, each after a trial in a process with limits.

A compiled grammar is shared by every request that asks for the same text. A mask takes some ten microseconds for
ordinary schemas.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import llguidance
import msgspec

import serving
from serving.constraints.child import Arguments, Question, Verdict, Vocabulary
from serving.constraints.grammar import Grammar, GrammarError, GrammarSpec, compile_grammar

MAX_GRAMMAR_CHARS = 1 << 16
_CACHED = 128
_WORKERS = 2
_COMMAND = [sys.executable, "-m", "serving.constraints.child"]


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """The limits of a trial. cpu_seconds, memory_bytes: of its process; seconds: of waiting for it, however busy the
    machine is; start_seconds: until the process has read the vocabulary."""

    cpu_seconds: float = 5.0
    memory_bytes: int = 1 << 30
    seconds: float = 30.0
    start_seconds: float = 120.0


class GrammarCompiler:
    """Compiles for one tokenizer. Thread-safe; the tokenizer's trie (a quarter of a second, and its JSON, megabytes of
    it) is made once, on first use, here and in each process that tries grammars."""

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        eos_token_ids: Iterable[int],
        limits: TrialLimits | None = None,
    ) -> None:
        self._json, self._vocab, self._eos = tokenizer_json, vocab_size, sorted(eos_token_ids)
        self._limits = TrialLimits() if limits is None else limits
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._cache: OrderedDict[GrammarSpec, Grammar | GrammarError] = OrderedDict()
        self._lock, self._cache_lock = threading.Lock(), threading.Lock()
        self._idle: list[_Trial] = []
        self._trials: set[_Trial] = set()
        self._closed = False
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="grammar")

    async def compile(self, spec: GrammarSpec) -> Grammar:
        """Compile a grammar. Raises GrammarError, also when its trial takes too much time or memory."""
        if len(spec.text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"it is longer than {MAX_GRAMMAR_CHARS} characters")
        if not self._eos:
            raise GrammarError("this model has no end-of-sequence token")
        with self._cache_lock:
            if (known := self._cache.get(spec)) is not None:
                self._cache.move_to_end(spec)
        if known is None:
            known = await asyncio.get_running_loop().run_in_executor(self._threads, self._compile, spec)
        if isinstance(known, GrammarError):
            raise GrammarError(str(known), known.param)
        return known

    async def follows(self, schema: str, arguments: str) -> bool | None:
        """Return whether the arguments of a call follow its function's schema, both JSON; None: it cannot be told."""
        if len(schema) + len(arguments) > MAX_GRAMMAR_CHARS or not self._eos:
            return None
        question = Question(arguments=Arguments(schema, arguments))
        verdict = await asyncio.get_running_loop().run_in_executor(self._threads, self._try, question)
        return None if verdict is None else verdict.fit

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for trial in self._trials:
                trial.kill()
        for trial in idle:
            trial.end()

    def _compile(self, spec: GrammarSpec) -> Grammar | GrammarError:
        verdict = self._try(Question(grammar=spec)) or Verdict("it takes too much time or memory to compile")
        made: Grammar | GrammarError
        if verdict.error is None:
            made = compile_grammar(spec, self._vocabulary(), self._vocab)
        else:
            made = GrammarError(verdict.error, verdict.param)
        with self._cache_lock:
            self._cache[spec] = made
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return made

    def _try(self, question: Question) -> Verdict | None:
        """Ask a process. None: it met one of its limits over the question."""
        with self._lock:
            trial = self._idle.pop() if self._idle else None
        if trial is None:
            vocabulary = Vocabulary(
                self._json(), self._vocab, self._eos, self._limits.cpu_seconds, self._limits.memory_bytes
            )
            trial = _Trial(vocabulary, self._limits)
            with self._lock:
                self._trials.add(trial)
        verdict = trial.verdict(question)
        with self._lock:
            if keep := trial.alive and not self._closed:
                self._idle.append(trial)
            else:
                self._trials.discard(trial)
        if not keep:
            trial.end()
        return verdict

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = llguidance.LLTokenizer(self._json(), n_vocab=self._vocab, eos_token=self._eos)
            return self._tokenizer


class _Trial:
    """One process of `serving.constraints.child`. Not thread-safe."""

    def __init__(self, vocabulary: Vocabulary, limits: TrialLimits) -> None:
        root = str(Path(serving.__file__).resolve().parents[1])
        self._seconds = limits.seconds
        self._child = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": root, "PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1"},
            cwd=root,
        )
        if self._ask(msgspec.json.encode(vocabulary), limits.start_seconds) is None:
            self.end()
            raise RuntimeError("the process that tries grammars does not start")

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def verdict(self, question: Question) -> Verdict | None:
        """Return the answer; a process that ends over the question, and gives none, has met one of its limits."""
        return self._ask(msgspec.json.encode(question), self._seconds)

    def kill(self) -> None:
        """Let the process end, from any thread."""
        self._child.kill()

    def end(self) -> None:
        """End the process and give its pipes back. Idempotent."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # of bytes that were not written yet
                pipe.close()

    def _ask(self, line: bytes, seconds: float) -> Verdict | None:
        assert self._child.stdin is not None and self._child.stdout is not None
        alarm = threading.Timer(seconds, self._child.kill)
        alarm.start()
        try:
            self._child.stdin.write(line + b"\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except OSError:
            answer = b""
        finally:
            alarm.cancel()
        if not answer:
            self.end()
            return None
        return msgspec.json.decode(answer, type=Verdict)
