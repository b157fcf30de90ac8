"""Callers who never stop: streams and whole answers, one after the other, each with the times that the audit needs."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from dataclasses import dataclass

from tests.end_to_end.chaos.market import LISTING
from tests.end_to_end.faults.calls import Call, Client, body_of


@dataclass
class Timed:
    """A call; `first_token` in unix seconds, None where none came. A whole answer's is its end."""

    call: Call
    stream: bool
    first_token: float | None = None

    @property
    def whole(self) -> bool:
        return bool(self.call.given) and self.call.given[-1].whole

    @property
    def tokens(self) -> int:
        return self.call.given[-1].tokens if self.call.given else 0


class Traffic:
    """`callers` at a time, until `stop`."""

    def __init__(self, client: Client, *, seed: int, callers: int) -> None:
        self._client, self._callers = client, callers
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._seed = seed
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.timed: list[Timed] = []

    def start(self) -> None:
        """Let the callers begin."""
        self._tasks = [asyncio.create_task(self._call_on()) for _ in range(self._callers)]

    async def stop(self) -> None:
        """Let each caller's last call end."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def call(self, kind: str, *, stream: bool, tokens: int) -> Timed:
        """Make one call and keep its times."""
        text = f"Chaos {self._seed}-{next(self._numbers)}"
        body = body_of(LISTING, text, max_tokens=tokens, stream=stream, ignore_eos=True, temperature=0)
        first: list[float] = []

        def saw(count: int) -> None:
            if count and not first:
                first.append(time.time())

        timed = Timed(await self._client.raw(kind, body, on_tokens=saw), stream)
        timed.first_token = first[0] if first else (timed.call.ended if timed.whole else None)
        self.timed.append(timed)
        return timed

    async def _call_on(self) -> None:
        while not self._stopping:
            stream = self._random.random() < 0.75
            tokens = self._random.choice((8, 60, 200, 400) if stream else (8, 60, 120))
            timed = await self.call("stream" if stream else "whole", stream=stream, tokens=tokens)
            if not timed.whole:
                await asyncio.sleep(0.2)  # as a client does before it tries again
