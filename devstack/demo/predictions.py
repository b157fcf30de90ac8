"""Predictions with the unmodified `openai` package: all models at once, streaming and not, and held-out accuracy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from examples.score import is_right, read_heldout

BASE_NAME = "intarsia/smollm2-135m-instruct"
MAX_TOKENS = 18  # the longest right answer has 16; the base model would ramble on
CONCURRENCY = 64
MAX_ROWS = 60  # held-out rows asked per model


@dataclass(frozen=True)
class Answer:
    """One delivered and charged prediction."""

    model: str
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano_usd: int
    first_token_seconds: float


@dataclass(frozen=True)
class Row:
    """One held-out example."""

    messages: list[dict[str, str]]
    expected: dict[str, str]


def held_out(role: str) -> list[Row]:
    """Return the committed held-out rows of a sample model."""
    return [Row(data["messages"], data["expected"]) for data in read_heldout(role)]


class Consumer:
    """Calls the platform exactly as a customer's program would."""

    def __init__(self, url: str, api_key: str) -> None:
        self._client = AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, timeout=120)

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, model: str, messages: list[Any]) -> Answer:
        """Make one prediction whose answer comes whole."""
        started = time.monotonic()
        answer = await self._client.chat.completions.create(
            model=model, messages=messages, max_tokens=MAX_TOKENS, temperature=0
        )
        return _answer(model, answer.choices[0].message.content or "", answer.usage, time.monotonic() - started)

    async def ask_streaming(self, model: str, messages: list[Any]) -> Answer:
        """Make one prediction whose answer is streamed."""
        started = time.monotonic()
        first: float | None = None
        parts: list[str] = []
        usage: Any = None
        stream = await self._client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            if chunk.choices and (text := chunk.choices[0].delta.content):
                first = first or time.monotonic() - started
                parts.append(text)
        return _answer(model, "".join(parts), usage, first or 0.0)

    async def accuracy(
        self, models: dict[str, str], progress: Callable[[], None]
    ) -> tuple[dict[str, dict[str, int]], list[Answer]]:
        """Ask every model (role → name) and the base all held-out rows. Returns role → counts, and all answers."""
        gate = asyncio.Semaphore(CONCURRENCY)
        counts = {role: {"rows": 0, "correct": 0, "base_correct": 0} for role in models}
        answers: list[Answer] = []

        async def one(role: str, name: str, counter: str, row: Row) -> None:
            # A sample's contract holds its instructions; the base gets them from the row.
            messages = row.messages if name == BASE_NAME else row.messages[-1:]
            async with gate:
                answer = await self.ask(name, messages)
            answers.append(answer)
            counts[role][counter] += is_right(answer.text, row.expected)
            progress()

        jobs = []
        # Rows of all models in turn, so that every batch holds several adapters, as real traffic does.
        for rows in zip(*(held_out(role)[:MAX_ROWS] for role in models), strict=True):
            for (role, name), row in zip(models.items(), rows, strict=True):
                counts[role]["rows"] += 1
                jobs += [one(role, name, "correct", row), one(role, BASE_NAME, "base_correct", row)]
        await asyncio.gather(*jobs)
        return counts, answers


def total_predictions(models: int) -> int:
    """Return how many predictions `accuracy` makes."""
    return models * MAX_ROWS * 2


def _answer(model: str, text: str, usage: Any, first: float) -> Answer:
    details = usage.prompt_tokens_details
    return Answer(
        model=model,
        text=text,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        completion_tokens=usage.completion_tokens,
        cost_nano_usd=usage.cost_nano_usd,
        first_token_seconds=first,
    )
