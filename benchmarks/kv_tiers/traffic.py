"""Questions about documents, drawn by Zipf's law, beside streams that only generate."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from serving.core import AdapterRef, Request, SamplingParams
from serving.engine import Engine

DOCUMENT_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 1024, 16, 4
# Streams of others, of a short prompt and as many tokens as fit before they begin anew.
STREAMS, STREAM_PROMPT, STREAM_TOKENS = 2, 32, 96
_GREEDY = SamplingParams(temperature=0, ignore_eos=True)
_ids = itertools.count()


@dataclass
class Answer:
    """One question's. ttft: seconds; cached: prompt tokens that were not computed; restored: blocks from below"""

    document: int
    ttft: float
    cached: int
    restored: int


@dataclass
class Turn:
    """answers in order; gaps: seconds between tokens of the others' streams"""

    answers: list[Answer] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


def documents(count: int, vocab: int, seed: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(1000, vocab) for _ in range(DOCUMENT_TOKENS)) for _ in range(count)]


def zipf(count: int, draws: int, seed: int) -> list[int]:
    """Draw document numbers with probability in proportion to 1 / rank."""
    return random.Random(seed).choices(range(count), [1 / (rank + 1) for rank in range(count)], k=draws)


async def ask(engine: Engine, number: int, document: Sequence[int], adapter: str | None, rng: random.Random) -> Answer:
    question = tuple(rng.randrange(1000, engine.vocab_size) for _ in range(QUESTION_TOKENS))
    prompt = (*document, *question)
    request = Request(
        f"q{next(_ids)}", "reader", "reader", AdapterRef(adapter), prompt, _GREEDY, ANSWER_TOKENS, speculate=False
    )
    before, began, ttft, cached = restored_blocks(engine), time.perf_counter(), 0.0, 0
    async for delta in engine.submit(request):
        ttft = ttft or time.perf_counter() - began
        cached = delta.usage.cached_tokens
    return Answer(number, ttft, cached, restored_blocks(engine) - before)


def restored_blocks(engine: Engine) -> int:
    return sum(counts.restored_blocks for counts in engine.planner.restores.tiers.counts().values())


@asynccontextmanager
async def others(engine: Engine, gaps: list[float]) -> AsyncIterator[None]:
    """Keep streams of other tenants running, and note the seconds between their tokens."""

    async def stream(place: int) -> None:
        for number in itertools.count():
            prompt = tuple((7 * i + 31 * place + number) % 1000 + 1000 for i in range(STREAM_PROMPT))
            tenant = f"other {place}"
            request = Request(
                f"s{next(_ids)}", tenant, tenant, AdapterRef(), prompt, _GREEDY, STREAM_TOKENS, speculate=False
            )
            last = None
            async for _ in engine.submit(request):
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now

    tasks = [asyncio.create_task(stream(place)) for place in range(STREAMS)]
    await asyncio.sleep(0.5)
    gaps.clear()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        while engine.planner.sequences():
            for sequence in engine.planner.sequences():
                engine.cancel(sequence.request.request_id)
            await asyncio.sleep(0.01)


async def turn(engine: Engine, texts: Sequence[Sequence[int]], draws: Sequence[int], seed: int) -> Turn:
    """Ask about the documents in `draws`, one after the other, while the others' streams run."""
    out, rng = Turn(), random.Random(seed)
    async with others(engine, out.gaps):
        for number in draws:
            out.answers.append(await ask(engine, number, texts[number], None, rng))
    return out
