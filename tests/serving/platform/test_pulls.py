"""KV that one replica computes and another pulls: the same tokens, the same bill, nothing for strangers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from serving.core import Delta, SamplingParams
from tests.serving.harness import GREEDY, running
from tests.serving.platform.pulling import Pair, pair
from tests.serving.tiny import ADAPTERS, Tiny


@pytest.fixture
async def two(tiny: Tiny) -> AsyncIterator[Pair]:
    async with pair(tiny) as made:
        yield made


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def charged(deltas: list[Delta]) -> tuple[int, int, int]:
    """The figures of a bill; how many guesses were verified depends on the pace of the machine."""
    usage = deltas[-1].usage
    return usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens


def prompt(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, 259) for _ in range(length)]


async def test_a_hundred_prompts_get_the_tokens_and_the_bill_of_one_replica(tiny: Tiny, two: Pair) -> None:
    adapters = [None, *ADAPTERS]
    async with running(tiny) as one:
        for number in range(100):
            adapter, chance = adapters[number % len(adapters)], random.Random(number)
            # Every third prompt goes on with an earlier one, so that parts of prompts are cached.
            asked = prompt(number // 3 * 3, 70 + number // 3 % 5 * 23) + prompt(number, number % 3 * 21)
            sampling = GREEDY if number % 2 else SamplingParams(temperature=0.9, seed=chance.randrange(1 << 30))
            alone = await one.run(one.request(asked, adapter, tokens=8, sampling=sampling))
            request = two.reader.run.request(asked, adapter, tokens=8, sampling=sampling)
            apart = await two.answer(request, adapter)
            assert tokens(apart) == tokens(alone)
            assert charged(apart) == charged(alone)
    assert two.client.outcomes["pulled"] >= 60
    assert set(two.client.outcomes) <= {"pulled", "needless"}
    placed = two.reader.run.engine.planner.exchange.counts.placed_blocks
    assert placed == two.source.run.engine.planner.exchange.counts.lent_blocks > 300
    for run in (two.source.run, two.reader.run):
        await run.settled()
