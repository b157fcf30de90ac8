"""Drafts change no answer: the same tokens and the same bits of log-probabilities as without, whatever is guessed."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from serving.constraints import GrammarCompiler, GrammarSpec
from serving.core import Delta, Request, SamplingParams
from serving.core import Sequence as Running
from serving.speculation import Drafter, Offer, Source
from tests.serving.harness import Running as Harness
from tests.serving.harness import running
from tests.serving.tiny import ADAPTERS, Tiny

# Random requests in all, and how many an engine gets at once; `make exact` asks for more of them.
REQUESTS = int(os.environ.get("INTARSIA_EXACT_REQUESTS", "240"))
TOGETHER = 120
# Weights of the engines, in turn.
DTYPES = ("float32", "bfloat16", "int8")

# Answers by request, as a run without drafts gave them.
Known = dict[str, list[int]]


class Prophet(Drafter):
    """Guesses from the answers themselves, some tokens of them made wrong: drafts of every length are accepted in part,
    whole and not at all."""

    def __init__(self, known: Known, seed: int) -> None:
        super().__init__()
        self._known, self._rng = known, random.Random(seed)

    def offer(self, sequence: Running, most: int, now: float) -> Offer:
        answer = self._known.get(sequence.request.request_id.rpartition("/")[2], [])
        tokens = [*answer[sequence.output_tokens :], *self._rng.choices(range(259), k=8)][: self._rng.randint(0, 9)]
        wrong = {place for place in range(len(tokens)) if self._rng.random() < 0.15}
        guess = [self._rng.randrange(259) if place in wrong else token for place, token in enumerate(tokens)]
        return Offer(tuple(guess[: max(0, most)]), (1.0,) * min(len(guess), max(0, most)), Source.ANSWERS)


def asked(run: Harness, rng: random.Random, grammars: Sequence[Any], name: str) -> Request:
    """One request of any kind: sampled, penalised, constrained, scored, stopped, long, short."""
    settings: dict[str, Any] = {"temperature": rng.choice([0, 0, 0, 0.7, 1.3]), "seed": rng.randrange(1 << 30)}
    if rng.random() < 0.4:
        settings["logprobs"] = rng.choice([0, 3])
    if rng.random() < 0.3:
        settings |= {"presence_penalty": rng.uniform(-1, 1), "repetition_penalty": rng.uniform(0.8, 1.4)}
    if rng.random() < 0.2:
        settings["logit_bias"] = ((rng.randrange(3, 259), 4.0), (2, -3.0))
    if rng.random() < 0.3:
        settings |= {"top_p": 0.9, "top_k": rng.choice([0, 20])}
    if rng.random() < 0.3:
        settings["constraint"] = rng.choice(grammars)
    elif rng.random() < 0.5:
        settings["ignore_eos"] = True
    if rng.random() < 0.2:
        settings["stop"] = (chr(rng.randrange(97, 123)),)
    prompt = [rng.randrange(3, 259) for _ in range(rng.choice([3, 20, 20, 70]))]
    request = run.request(
        prompt, rng.choice([None, *ADAPTERS]), tokens=rng.choice([1, 2, 9, 24, 40]), sampling=SamplingParams(**settings)
    )
    return replace(request, request_id=name)


def said(deltas: list[Delta]) -> tuple[Any, ...]:
    """Return all that a caller sees of a completion, but for what was drafted."""
    usage = deltas[-1].usage
    return (
        [token for delta in deltas for token in delta.token_ids],
        [entry for delta in deltas for entry in delta.logprobs],
        "".join(delta.text for delta in deltas),
        deltas[-1].finish_reason,
        (usage.prompt_tokens, usage.completion_tokens),
    )


@pytest.fixture
def grammars(tiny: Tiny) -> Iterator[list[Any]]:
    compiler = GrammarCompiler((tiny.model / "tokenizer.json").read_text, 259, [2])
    schema = '{"type": "object", "properties": {"a": {"enum": ["bcd", "xyz"]}}, "required": ["a"]}'
    specs = [GrammarSpec("json_schema", schema), GrammarSpec("regex", "(abc|abd)[0-9]{2,5}-end")]
    yield [asyncio.run(compiler.compile(spec)) for spec in specs]
    compiler.close()


@pytest.mark.parametrize("blocks", [1, 400], ids=["preempted", "roomy"])
@pytest.mark.parametrize("turn", range(-(-REQUESTS // (2 * TOGETHER))))
async def test_every_kind_of_request_gets_the_same_answer_with_drafts_and_without(
    tiny: Tiny, grammars: list[Any], blocks: int, turn: int
) -> None:
    rng = random.Random(blocks + turn)
    settings = {"max_draft_rows": 48, "max_num_seqs": 12, "dtype": DTYPES[turn % len(DTYPES)]}
    # Memory is not elastic, whose next move of the boundary would lift the limit below.
    async with running(tiny, elastic_memory=False, **settings) as run:
        requests = [asked(run, rng, grammars, f"{index}") for index in range(TOGETHER)]
        planner = run.engine.planner
        without = await asyncio.gather(*(run.run(replace(one, speculate=False)) for one in requests))
        known = {one.request_id: said(deltas)[0] for one, deltas in zip(requests, without, strict=True)}
        assert not any(planner.drafts.drafted.values())
        planner.drafts.drafter = Prophet(known, blocks + turn)
        planner.pool.set_limit(planner.pool.blocks_for(128) * blocks)
        before = planner.preemptions
        scoped = [replace(one, request_id=f"again/{one.request_id}", cache_scope="another") for one in requests]
        with_drafts = await asyncio.gather(*(run.run(one) for one in scoped))
        await run.settled()
        assert [said(deltas) for deltas in with_drafts] == [said(deltas) for deltas in without]
        usages = [deltas[-1].usage for deltas in with_drafts]
        assert sum(usage.accepted_tokens for usage in usages) > 300
        assert sum(usage.drafted_tokens for usage in usages) > sum(usage.accepted_tokens for usage in usages)
        assert all(usage.accepted_tokens <= usage.completion_tokens for usage in usages)
        assert (planner.preemptions > before) == (blocks == 1)
