"""The examples of a contract, answered by the model: only counts come out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from protocol.contracts import ExampleCounts
from sealed_weights import parse_contract
from serving.constraints import GrammarCompiler
from serving.core import Delta, Request, Usage
from serving.errors import DeadlineExceeded, NonFiniteOutput
from serving.platform.examples import MOST_TOKENS, ExampleRunner, count
from serving.tokenization.tokenizer import Tokenizer
from tests.serving.platform.test_contract_check import GOOD
from tests.serving.tiny import Tiny

SEVERAL = GOOD | {"examples": [{"message": text, "answer": '{"a":"yes"}'} for text in ("one", "two", "three")]}


class Scripted:
    """An engine that answers each prompt by the first of its words that it finds there."""

    def __init__(self, tokenizer: Tokenizer, answers: dict[str, tuple[str, str] | Exception]) -> None:
        self.tokenizer, self.answers, self.asked = tokenizer, answers, []

    async def submit(self, request: Request) -> AsyncIterator[Delta]:
        prompt = self.tokenizer.decode(request.prompt_token_ids)
        self.asked.append((request, prompt))
        found = next(answer for word, answer in self.answers.items() if word in prompt)
        await asyncio.sleep(0)
        if isinstance(found, Exception):
            raise found
        text, reason = found
        yield Delta(text[:3], (), (), None, Usage(1, 1, 0))
        yield Delta(text[3:], (), (), reason, Usage(1, 2, 0))


@pytest.fixture
def runner(tiny: Tiny) -> Iterator[Any]:
    tokenizer = Tokenizer.from_dir(tiny.model)
    grammars = GrammarCompiler(tokenizer.backend.to_str, tokenizer.vocab_size, tokenizer.eos_token_ids)

    def make(answers: dict[str, tuple[str, str] | Exception]) -> tuple[ExampleRunner, Scripted]:
        engine = Scripted(tokenizer, answers)
        return ExampleRunner(engine, tokenizer, grammars), engine  # type: ignore[arg-type]

    yield make
    grammars.close()


async def test_answers_are_counted_as_valid_and_as_equal(runner: Any) -> None:
    run, engine = runner({"one": ('{"a": "yes"}', "stop"), "two": ('{"a":"no"}', "stop"), "three": ('{"a":', "length")})
    contract = parse_contract(json.dumps(SEVERAL).encode())
    assert await run.run("ab" * 32, contract) == ExampleCounts(3, 2, 1)
    request, prompt = engine.asked[0]
    assert "Say yes or no." in prompt and prompt.index("Say yes") < prompt.index("one"), "as under its contract"
    assert request.sampling.temperature == 0 and request.sampling.constraint is not None
    assert len({asked.cache_scope for asked, _ in engine.asked}) == 1, "its instructions are computed once"


async def test_an_answer_that_does_not_come_in_time_is_not_counted(runner: Any) -> None:
    run, _ = runner(
        {"one": ('{"a":"yes"}', "stop"), "two": DeadlineExceeded("late"), "three": DeadlineExceeded("late")}
    )
    assert await run.run("ab" * 32, parse_contract(json.dumps(SEVERAL).encode())) == ExampleCounts(1, 1, 1)


async def test_a_broken_model_is_refused_rather_than_counted(runner: Any) -> None:
    run, _ = runner({"": NonFiniteOutput("nan")})
    with pytest.raises(NonFiniteOutput):
        await run.run("ab" * 32, parse_contract(json.dumps(SEVERAL).encode()))


async def test_without_examples_there_is_nothing_to_say(runner: Any) -> None:
    run, engine = runner({})
    assert await run.run("ab" * 32, parse_contract(json.dumps(GOOD | {"examples": []}).encode())) is None
    assert engine.asked == []


def test_free_text_is_valid_when_there_is_some() -> None:
    text = {key: SEVERAL[key] for key in ("contract", "instructions", "examples")} | {"max_tokens": MOST_TOKENS}
    contract = parse_contract(json.dumps(text).encode())
    assert count(contract, ['{"a":"yes"} ', "  ", None]) == ExampleCounts(2, 1, 1)
