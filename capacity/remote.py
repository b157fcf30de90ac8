"""A running replica, driven over HTTP from outside: its facts, and calls whose tokens are timed as they arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import httpx
import msgspec

from capacity.closed_loop import starting
from capacity.errors import PlanRefused
from capacity.profile import Machine, Model, Replica
from capacity.runs import TimedCall
from protocol.latency import CLASS_OF_TIER

# Prompts of `cells.prompt_tokens` that share no block with another: each run begins at a number of its own, so that the
# prefix cache has nothing of the runs before.
PROMPTS = 180**3 - 100_000
_TIERS: dict[str, str | None] = {name: tier for tier, name in CLASS_OF_TIER.items() if tier not in (None, "auto")}
_TIMEOUT = httpx.Timeout(120.0, connect=10.0, pool=None)
_LARGEST_LINE = 1 << 20
_FULL = (429, 503)
_Found = TypeVar("_Found")


class Facts(msgspec.Struct, frozen=True):
    """The answer of `GET /about` (`serving.about`). resident: rank → adapters that are ready"""

    machine: Machine
    model: Model
    replica: Replica
    resident: dict[str, int]


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A call to send. model: a name that the replica lists; prompt: its tokens; output: how many are generated"""

    model: str
    prompt: Sequence[int]
    output: int
    latency_class: str = "standard"


class _Choice(msgspec.Struct):
    token_ids: list[int] = []


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


class _Card(msgspec.Struct):
    id: str


class _Cards(msgspec.Struct):
    data: list[_Card]


def _nothing() -> None: ...


_EVENTS = msgspec.json.Decoder(_Event)


class Remote:
    """One replica. Use it as a context: its connections live as long. Every method raises PlanRefused."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise PlanRefused(8, f"--url {url}: an address such as http://127.0.0.1:8100")
        self.url = url.rstrip("/")
        self._runner = asyncio.Runner()
        # Not through a proxy of the environment: it would be timed with the replica.
        self._client = httpx.AsyncClient(
            base_url=self.url,
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
        )

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def facts(self) -> Facts:
        """Return the replica's machine, model and limits."""
        found = self._get("/readyz")
        if found.status_code != 200:
            raise PlanRefused(8, f"the replica at {self.url} is not ready: HTTP {found.status_code}")
        found = self._get("/about")
        if found.status_code == 404:
            raise PlanRefused(
                8,
                f"{self.url} tells no sizes at /about: it is no replica, or one of a platform, which answers its "
                "platform alone; start one on the same machine with --insecure",
            )
        return _read(found, Facts, self.url)

    def models(self, base: str | None = None) -> tuple[str, tuple[str, ...]]:
        """Return the name of the base, and those of the adapters. base: the name it has there; None: the first"""
        names = [card.id for card in _read(self._get("/v1/models"), _Cards, self.url).data]
        if not names or (base is not None and base not in names):
            listed = ", ".join(names[:8]) or "nothing"
            raise PlanRefused(8, f"the model {base or 'of the base'!r} is unknown at {self.url}, which lists {listed}")
        base = base or names[0]
        return base, tuple(name for name in names if name != base)

    def closed(
        self, calls: Sequence[RemoteCall], clients: int, *, least: int = 0, seconds: float = float("inf")
    ) -> list[TimedCall]:
        """Send calls by `clients` that each wait for their answer, and return what became of each, in order. The
        clients start one after the other, as those of `closed_loop.run_closed` do.

        After `seconds` no call begins any more, once `least` have: the first calls are returned, as many as began.
        """
        found: dict[int, TimedCall] = {}
        todo = iter(range(len(calls)))
        until = time.perf_counter() + seconds
        before = starting(clients)
        clients = min(clients, len(calls))
        begun = [asyncio.Event() for _ in range(clients)]  # those whose first call has a token

        async def client(place: int) -> None:
            if place >= before:
                await begun[place - before].wait()
            try:
                for number in todo:
                    if number >= least and time.perf_counter() > until:
                        return
                    found[number] = await self._send(calls[number], begun[place].set)
            finally:
                begun[place].set()

        self._run(_all(map(client, range(clients))))
        whole = next((number for number in range(len(calls)) if number not in found), len(calls))
        return [_served(found[number], self.url) for number in range(whole)]

    def open(self, calls: Sequence[RemoteCall], at: Sequence[float]) -> list[TimedCall]:
        """Send each call at its time, in seconds from now, whatever became of the others. Times are from then on."""

        async def send(call: RemoteCall, moment: float) -> TimedCall:
            await asyncio.sleep(began + moment - time.perf_counter())
            timed = await self._send(call)
            return TimedCall(timed.sent - began, [token - began for token in timed.tokens])

        began = time.perf_counter()
        return self._run(_all(send(*pair) for pair in zip(calls, at, strict=True)))

    async def _send(self, call: RemoteCall, begun: Callable[[], object] = _nothing) -> TimedCall:
        body = {
            "model": call.model,
            "prompt": list(call.prompt),
            "max_tokens": call.output,
            "temperature": 0,
            "ignore_eos": True,
            "speculation": False,
            "stream": True,
            "return_token_ids": True,
            "service_tier": _TIERS[call.latency_class],
        }
        data = msgspec.json.encode(body)
        timed = TimedCall(time.perf_counter())
        try:
            async with self._client.stream(
                "POST", "/v1/completions", content=data, headers={"Content-Type": "application/json"}
            ) as answer:
                if answer.status_code in _FULL:
                    await answer.aread()
                    return timed
                if answer.status_code != 200:
                    await answer.aread()
                    raise _refusal(answer, self.url)
                await _read_tokens(answer, timed, self.url, begun)
        except httpx.HTTPError as error:
            raise PlanRefused(
                8, f"the replica at {self.url} stopped in the middle of a cell: {_words(error)}"
            ) from error
        if len(timed.tokens) != call.output:
            raise PlanRefused(
                8, f"the replica at {self.url} sent {len(timed.tokens)} of {call.output} tokens and ended the answer"
            )
        return timed

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._run(self._client.get(path))
        except httpx.HTTPError as error:
            raise PlanRefused(8, f"no replica answers at {self.url}: {_words(error)}") from error

    def _run(self, work: Coroutine[Any, Any, _Found]) -> _Found:
        return self._runner.run(work)


async def _all(parts: Iterable[Coroutine[Any, Any, _Found]]) -> list[_Found]:
    """Run parts together; where one fails, the others end with it."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_tokens(answer: httpx.Response, timed: TimedCall, url: str, begun: Callable[[], object]) -> None:
    """Note the time of each token of a stream of events. begun: is called with the first"""
    rest = b""
    async for part in answer.aiter_raw():
        now = time.perf_counter()
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _LARGEST_LINE:
            raise PlanRefused(8, f"{url} sent a line that is no event")
        for line in lines:
            if line.startswith(b"data: {"):
                event = _event(line[6:], url)
                for choice in event.choices:
                    timed.tokens += [now] * len(choice.token_ids)
        if timed.tokens:
            begun()


def _event(data: bytes, url: str) -> _Event:
    try:
        event = _EVENTS.decode(data)
    except msgspec.MsgspecError as error:
        raise PlanRefused(8, f"{url} sent an event that cannot be read: {error}") from error
    if event.error is not None:
        raise PlanRefused(8, f"the replica at {url} stopped in the middle of a cell: {str(event.error)[:200]}")
    return event


def _read(answer: httpx.Response, kind: type[_Found], url: str) -> _Found:
    if answer.status_code != 200:
        raise _refusal(answer, url)
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.MsgspecError as error:
        raise PlanRefused(8, f"{url}{answer.url.path} is no replica's answer: {error}") from error


def _refusal(answer: httpx.Response, url: str) -> PlanRefused:
    status = answer.status_code
    if status in (401, 403):
        return PlanRefused(
            8,
            f"{url} wants a token (HTTP {status}): a replica of a platform answers its platform alone; start one with "
            "--insecure",
        )
    return PlanRefused(8, f"{url}{answer.url.path} answered HTTP {status}: {answer.text[:200]}")


def _served(call: TimedCall, url: str) -> TimedCall:
    if not call.tokens:
        raise PlanRefused(8, f"the replica at {url} is full: others use it, and would be measured too")
    return call


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
