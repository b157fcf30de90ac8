"""Predictions with the unmodified `openai` package: all models at once, streaming and not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from examples.score import read_heldout

MAX_TOKENS = 18  # the longest right answer has 16; the base model would ramble on


@dataclass(frozen=True)
class Answer:
    """One delivered and charged prediction. accepted_tokens, rejected_tokens: guessed ahead, right and wrong."""

    model: str
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano_usd: int
    first_token_seconds: float
    accepted_tokens: int
    rejected_tokens: int


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
        accepted_tokens=usage.completion_tokens_details.accepted_prediction_tokens,
        rejected_tokens=usage.completion_tokens_details.rejected_prediction_tokens,
    )
