"""Compilation of grammars for one tokenizer, each after a trial in a process with limits.

A compiled grammar is shared by every request that asks for the same text. A mask takes some ten microseconds for
ordinary schemas. Tenants share processes and cache: each has its part of both, and a trial ends with its caller.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import llguidance
import msgspec

import serving
from protocol.shares import Bound, Ended, Ending, FairCache, Threads, declared
from serving.constraints.child import Arguments, Question, Verdict, Vocabulary
from serving.constraints.grammar import Grammar, GrammarError, GrammarSpec, compile_grammar
from serving.errors import refusing

MAX_GRAMMAR_CHARS = 1 << 16
PLATFORM = "platform"  # the tenant of what the replica compiles for no caller
GRAMMARS = declared(Bound("grammars", places=2, share=1, waiting=16, seconds=60.0))
GRAMMAR_CACHE = declared(Bound("grammar cache", places=256, share=16))
Result = TypeVar("Result")
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
        self._cache: FairCache[GrammarSpec, Grammar | GrammarError] = FairCache(GRAMMAR_CACHE)
        self._lock = threading.Lock()
        self._idle: list[_Trial] = []
        self._trials: set[_Trial] = set()
        self._closed = False
        self._threads = Threads(GRAMMARS)

    def of(self, tenant: str) -> TenantGrammars:
        """Return the compiler as one tenant uses it."""
        return TenantGrammars(self, tenant)

    async def compile(self, spec: GrammarSpec, tenant: str = PLATFORM) -> Grammar:
        """Compile a grammar. Raises GrammarError, also when its trial takes too much time or memory; QueueFull and
        DeadlineExceeded where others are compiled."""
        if len(spec.text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"it is longer than {MAX_GRAMMAR_CHARS} characters")
        if not self._eos:
            raise GrammarError("this model has no end-of-sequence token")
        known = self._cache.get(spec, tenant)
        if known is None:
            known = await self._run(tenant, lambda ending: self._compile(spec, tenant, ending))
        if isinstance(known, GrammarError):
            raise GrammarError(str(known), known.param)
        return known

    async def follows(self, schema: str, arguments: str, tenant: str = PLATFORM) -> bool | None:
        """Return whether the arguments of a call follow its function's schema, both JSON; None: it cannot be told."""
        if len(schema) + len(arguments) > MAX_GRAMMAR_CHARS or not self._eos:
            return None
        question = Question(arguments=Arguments(schema, arguments))
        # Short, and asked with a short patience: a process that is ended would cost the next one more than its rest.
        verdict = await self._run(tenant, lambda _: self._try(question, Ending()))
        return None if verdict is None else verdict.fit

    def close(self) -> None:
        self._threads.close()
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for trial in self._trials:
                trial.kill()
        for trial in idle:
            trial.end()

    async def _run(self, tenant: str, work: Callable[[Ending], Result]) -> Result:
        with refusing("the compilation of grammars"):
            return await self._threads.run(tenant, work)

    def _compile(self, spec: GrammarSpec, tenant: str, ending: Ending) -> Grammar | GrammarError:
        if (known := self._cache.get(spec, tenant)) is not None:  # while this one waited
            return known
        verdict = self._try(Question(grammar=spec), ending) or Verdict("it takes too much time or memory to compile")
        made: Grammar | GrammarError
        if verdict.error is None:
            made = compile_grammar(spec, self._vocabulary(), self._vocab)
        else:
            made = GrammarError(verdict.error, verdict.param)
        self._cache.put(spec, tenant, made)
        return made

    def _try(self, question: Question, ending: Ending) -> Verdict | None:
        """Ask a process. None: it met one of its limits over the question. Raises Ended when the caller left."""
        with self._lock:
            trial = self._idle.pop() if self._idle else None
        if trial is None:
            vocabulary = Vocabulary(
                self._json(), self._vocab, self._eos, self._limits.cpu_seconds, self._limits.memory_bytes
            )
            trial = _Trial(vocabulary, self._limits)
            with self._lock:
                self._trials.add(trial)
        try:
            with ending.calling(trial.kill):
                verdict = trial.verdict(question)
        except Ended:  # before it was asked
            verdict = None
        with self._lock:
            if keep := trial.alive and not self._closed:
                self._idle.append(trial)
            else:
                self._trials.discard(trial)
        if not keep:
            trial.end()
        ending.check()
        return verdict

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = llguidance.LLTokenizer(self._json(), n_vocab=self._vocab, eos_token=self._eos)
            return self._tokenizer


@dataclass(frozen=True, slots=True)
class TenantGrammars:
    """The grammars of one tenant's requests."""

    compiler: GrammarCompiler
    tenant: str

    async def compile(self, spec: GrammarSpec) -> Grammar:
        """Do what the compiler does, in the tenant's share."""
        return await self.compiler.compile(spec, self.tenant)

    async def follows(self, schema: str, arguments: str) -> bool | None:
        """Do what the compiler does, in the tenant's share."""
        return await self.compiler.follows(schema, arguments, self.tenant)


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
