"""Predictions that the gateway asks for itself on the way to an answer: held, metered and charged as any other.

They are charged for good when the answer that they were asked for is handed over, and given back otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from marketplace.accounts.errors import Refusal
from marketplace.gateway.answers import relay_whole
from marketplace.gateway.attempts import WholeAnswer
from marketplace.gateway.dispatch import dispatch
from marketplace.gateway.http import Client
from marketplace.gateway.order import Order
from marketplace.gateway.pools import ReplicaAddress
from marketplace.gateway.prediction import Parts, Prediction
from protocol.errors import ClientGone
from protocol.messages import PREDICTION_EXTRA_KEY

Read = TypeVar("Read")

CHAT_PATH = "/v1/chat/completions"
AT_ONCE = 8  # predictions of one request


@dataclass(frozen=True)
class Asked(Generic[Read]):
    """One answer as it was read. `cost_nano_usd` is None while the database is away: it is charged later."""

    prediction_id: str
    cost_nano_usd: int | None
    read: Read


class _Inside(Client, Generic[Read]):
    """The gateway as its own client: it never hangs up, and takes an answer that it can read."""

    def __init__(self, read: Callable[[dict[str, Any]], Read], handed: asyncio.Future[None]) -> None:
        """Start with nothing handed over. `read` raises Refusal for an answer that is of no use."""
        super().__init__(self._never, self._drop)
        self._read, self._handed = read, handed
        self.asked: asyncio.Future[Asked[Read]] = asyncio.get_running_loop().create_future()
        self.refusal: Refusal | None = None

    async def _never(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def _drop(self, _: Any) -> None:
        return

    async def send_whole(self, body: bytes, headers: dict[str, str]) -> None:
        """Take the answer, until it is handed on. One of no use is left as a client who is gone leaves it: for free."""
        answer: dict[str, Any] = orjson.loads(body)
        try:
            read = self._read(answer)
        except Refusal as refusal:
            self.refusal = refusal
            raise ClientGone from None
        cost = (answer.get("usage") or {}).get("cost_nano_usd")
        self.asked.set_result(Asked(answer[PREDICTION_EXTRA_KEY]["prediction_id"], cost, read))
        await asyncio.shield(self._handed)


async def _ask(prediction: Prediction, inside: _Inside[Any], candidates: list[ReplicaAddress], request_id: str) -> None:
    """Carry one prediction out. Raises Refusal; one that is cancelled before it was handed on is free."""
    with inside:
        try:
            await prediction.hold(key=None, replica=candidates[0])
            answer = await dispatch(prediction, inside, CHAT_PATH, candidates, request_id)
            assert isinstance(answer, WholeAnswer), "no such request is for a stream"
            await relay_whole(prediction, answer, inside, {})
        except asyncio.CancelledError:
            await asyncio.shield(prediction.abandon())
            raise
    if inside.refusal is not None:
        raise inside.refusal


@asynccontextmanager
async def asked(
    parts: Parts,
    orders: Iterable[Order],
    candidates: list[ReplicaAddress],
    request_id: str,
    read: Callable[[dict[str, Any]], Read],
) -> AsyncIterator[list[Asked[Read]]]:
    """Yield the answers to `orders` as `read` reads them, asked AT_ONCE at a time.

    All are free unless the block that is given them ends without an exception: hand your own answer over inside. The
    first refusal, also by `read`, cancels what is open. Raises Refusal, and what the block raises.
    """
    handed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    slots = asyncio.Semaphore(AT_ONCE)
    insides: list[_Inside[Read]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for order in orders:
                insides.append(inside := _Inside(read, handed))
                await slots.acquire()
                task = group.create_task(_ask(Prediction(parts, order), inside, candidates, request_id))
                inside.asked.add_done_callback(lambda _: slots.release())
                task.add_done_callback(lambda _, one=inside: one.asked.cancel())  # type: ignore[misc]
            yield [await inside.asked for inside in insides]
            handed.set_result(None)
    except BaseExceptionGroup as failed:
        refusals, others = failed.split(Refusal)
        if refusals is None or others is not None:
            raise failed.exceptions[0] from None
        raise refusals.exceptions[0] from None
