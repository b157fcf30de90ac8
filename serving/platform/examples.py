"""The examples of a new version's contract, answered by the model itself: only counts leave the replica."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

from protocol.contracts import ExampleCounts
from protocol.json_text import is_json, value_of
from protocol.requests.bodies import ChatBody, Message
from sealed_weights import Contract, ContractExample
from serving.constraints import GrammarCompiler, json_spec
from serving.core import AdapterRef, Constraint, Request, SamplingParams
from serving.engine import Engine
from serving.errors import DeadlineExceeded
from serving.http.contracts import applied
from serving.http.prompts import chat_messages
from serving.tokenization.tokenizer import Tokenizer

SECONDS = 40.0  # for all of them together: the platform waits two minutes for a whole verification
MOST_TOKENS = 512  # of one answer: longer ones tell no more about whether a model keeps its contract


class ExampleRunner:
    """Asks an adapter what its creator says that it answers, greedily, as a call under its contract is asked."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, grammars: GrammarCompiler) -> None:
        self._engine, self._tokenizer, self._grammars = engine, tokenizer, grammars

    async def run(self, digest: str, contract: Contract) -> ExampleCounts | None:
        """Return how many examples were answered in time, validly, and as written; None without examples.

        The adapter is loaded, or can be. Raises NonFiniteOutput, AdapterUnavailable, other EngineErrors.
        """
        if not contract.examples:
            return None
        output = contract.output
        grammar = None if output is None else await self._grammars.compile(json_spec(dict(output), tight=True))
        scope, deadline = f"verify-{uuid.uuid4()}", time.monotonic() + SECONDS
        found = await asyncio.gather(
            *(self._answer(digest, contract, one, grammar, scope, deadline) for one in contract.examples)
        )
        return count(contract, found)

    async def _answer(
        self,
        digest: str,
        contract: Contract,
        example: ContractExample,
        grammar: Constraint | None,
        scope: str,
        deadline: float,
    ) -> str | None:
        """Return the whole answer, None if it did not end in time or within the limit set here, "" if it was cut."""
        request = Request(
            request_id=f"example-{uuid.uuid4()}",
            tenant="platform",
            cache_scope=scope,
            adapter=AdapterRef(digest),
            prompt_token_ids=self._prompt(contract, example),
            sampling=SamplingParams(temperature=0.0, constraint=grammar),
            max_tokens=min(contract.max_tokens, MOST_TOKENS),
            deadline=deadline,
        )
        text, reason = "", None
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic()) + 5):
                async for delta in self._engine.submit(request):
                    text, reason = text + delta.text, delta.finish_reason
        except (DeadlineExceeded, TimeoutError):
            return None
        if reason == "stop":
            return text
        return "" if contract.max_tokens <= MOST_TOKENS else None

    def _prompt(self, contract: Contract, example: ContractExample) -> tuple[int, ...]:
        template = self._tokenizer.chat_template
        assert template is not None, "the contract's check refuses a base without one"
        body = applied(ChatBody(model="", messages=[Message("user", example.message)]), contract)
        text = template.render(chat_messages(body))
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def count(contract: Contract, answers: Sequence[str | None]) -> ExampleCounts:
    """Return the counts of these answers, each beside its example; None is an answer that did not come."""
    pairs = [(one.answer, got) for one, got in zip(contract.examples, answers, strict=True) if got is not None]
    as_json = contract.output is not None
    valid = [(wanted, got) for wanted, got in pairs if _is_valid(got, as_json=as_json)]
    return ExampleCounts(len(pairs), len(valid), sum(_same(wanted, got, as_json=as_json) for wanted, got in valid))


def _is_valid(answer: str, *, as_json: bool) -> bool:
    """Return whether it is a whole answer; one under a schema follows it by construction once it has ended."""
    return is_json(answer) if as_json else bool(answer.strip())


def _same(wanted: str, got: str, *, as_json: bool) -> bool:
    return value_of(wanted) == value_of(got) if as_json else wanted.strip() == got.strip()
