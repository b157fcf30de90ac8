"""Long prompts of one tenant leave threads to the long prompts of others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

from protocol.requests.bodies import CompletionBody
from serving.http.prompts import PROMPTS, PromptReader
from serving.tokenization.tokenizer import Tokenizer

PATIENCE = 30.0


class _Tokenizer:
    """Holds the texts of `hostile` until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []

    def encode(self, text: str, **_: Any) -> list[int]:
        self.begun.append(text[:7])
        if text.startswith("hostile"):
            assert self.go.wait(PATIENCE)
        return [1]


async def test_long_prompts_of_one_tenant_take_its_share_of_threads() -> None:
    tokenizer = _Tokenizer()
    reader = PromptReader(cast(Tokenizer, tokenizer), 10)

    def asked(tenant: str) -> asyncio.Task[Any]:
        body = CompletionBody(model="m", prompt=tenant * 10_000)
        return asyncio.create_task(reader.completion(body, tenant))

    hostile = [asked("hostile") for _ in range(20)]
    (prompt,) = await asyncio.wait_for(asked("another"), PATIENCE)
    assert prompt.token_ids == (1,)
    assert tokenizer.begun.count("hostile") == PROMPTS.share and not any(task.done() for task in hostile)
    for task in hostile[PROMPTS.share :]:
        task.cancel()  # their callers leave before their turn
    tokenizer.go.set()
    await asyncio.gather(*hostile, return_exceptions=True)
    assert tokenizer.begun.count("hostile") == PROMPTS.share
