"""A hostile tenant: calls that try to be free, work at others' expense, and every shared pool filled as far as it goes.

Three organizations take part: the hostile one, which pays for some of its calls; one without money; and the consumer
of the fault run as their neighbour, whose calls must neither fail nor wait beyond bounds meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from devstack.demo.platform_client import PlatformClient
from tests.end_to_end.faults.calls import Call, Client, body_of
from tests.end_to_end.platform import Platform

HOSTILE_ROLE = "telecom"  # of the sample logins
CREDIT_CENTS = 2_000
LINES = 20_000
BOMBS = 18
# A bound of the test: what a neighbour's call may take on a machine that is busy with the attack as well.
WAIT_SECONDS = 60.0
_PROPERTIES = 1_500
# What a caller can choose about the end of an answer, and hope to be free for.
_FREE_RIDES: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 0.2},
    {"repetition_penalty": 0.2, "n": 4},
    {"stop": [" "]},
    {"response_format": {"type": "json_object"}, "max_tokens": 5},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"minLength": 4_000}}}},
    {"frequency_penalty": 2.0, "presence_penalty": 2.0, "max_tokens": 1},
)

Asking = Callable[[], Awaitable[Call]]


@dataclass
class Attack:
    """How the attack went. `contradictions`: one sentence each, about the neighbour and about calls without money."""

    counted: Counter[str] = field(default_factory=Counter)
    waits: dict[str, list[float]] = field(default_factory=dict)  # seconds of the neighbour's calls, quiet and attacked
    contradictions: list[str] = field(default_factory=list)

    def p95(self, when: str) -> float:
        """Return the seconds within which 95 % of the neighbour's calls were answered."""
        waits = sorted(self.waits[when])
        return waits[max(0, -(-len(waits) * 95 // 100) - 1)]


class Hostile:
    """The attack on one platform."""

    def __init__(self, platform: Platform, *, model: str, neighbour: Asking, penniless_key: str, seed: int) -> None:
        """Attack through `model`, which the real replica serves; `neighbour` makes one paid call of another tenant."""
        self._platform, self._model, self._neighbour, self._seed = platform, model, neighbour, seed
        self._penniless = Client(platform.url, penniless_key)
        self._paying: Client | None = None
        self._key = ""
        self._over = asyncio.Event()

    @property
    def calls(self) -> list[Call]:
        """Return all predictions that were asked for, for the audit."""
        return [*self._penniless.calls, *(self._paying.calls if self._paying else ())]

    async def attack(self, *, bodies: int, rounds: int) -> Attack:
        """Fill every pool at once, with `bodies` slow bodies, while the neighbour makes `rounds` of calls."""
        attack = Attack()
        await asyncio.to_thread(self._open)
        assert self._paying is not None
        many = await self._upload("".join(self._line(number) for number in range(LINES)), self._key)
        await self._neighbours(attack, "quiet", rounds)
        attacks = [
            *(self._quote(many) for _ in range(8)),
            *(self._slow_upload() for _ in range(8)),
            *(self._slow_body() for _ in range(bodies)),
            *(self._paying.raw("grammar bomb", self._bomb(number)) for number in range(BOMBS)),
            *(self._paying.raw("free rider", self._free_ride(ride)) for ride in _FREE_RIDES),
            *(self._drain(attack, number) for number in range(20)),
        ]
        attack.counted.update(
            {"quotes": 8, "slow uploads": 8, "slow bodies": bodies, "grammar bombs": BOMBS, "drains": 20}
        )
        attack.counted["free riders"] = len(_FREE_RIDES)
        running = [asyncio.ensure_future(one) for one in attacks]
        await asyncio.sleep(1.0)  # they have begun
        await self._neighbours(attack, "attacked", rounds)
        self._over.set()
        await asyncio.gather(*running)
        return attack

    # -- the neighbour -----------------------------------------------------------------------------------------------

    async def _neighbours(self, attack: Attack, when: str, rounds: int) -> None:
        """Make calls of every kind, one after the other, each within a bound."""
        for number in range(rounds):
            for kind, ask in self._kinds(number):
                began = time.monotonic()
                try:
                    async with asyncio.timeout(WAIT_SECONDS):
                        fault = await ask
                except TimeoutError:
                    fault = f"no answer within {WAIT_SECONDS:.0f} s"
                attack.waits.setdefault(when, []).append(time.monotonic() - began)
                if fault:
                    attack.contradictions.append(f"the neighbour's {kind} ({when}): {fault}")

    def _kinds(self, number: int) -> list[tuple[str, Awaitable[str]]]:
        key = self._platform.api_key
        return [
            ("prediction", self._predicted()),
            ("list of files", self._asked(key, "GET", "/v1/files")),
            ("file and quote", self._file_and_quote(key, number)),
            ("page", self._asked(key, "GET", "/models/")),
        ]

    async def _predicted(self) -> str:
        call = await self._neighbour()
        return "" if call.given and call.given[-1].whole else call.outcome

    async def _file_and_quote(self, key: str, number: int) -> str:
        file = await self._upload(self._line(-1 - number), key)
        return "the upload failed" if not file else await self._asked(key, "POST", "/v1/batches/quote", file=file)

    async def _asked(self, key: str, method: str, path: str, *, file: str = "") -> str:
        async with self._http(key) as http:
            answer = await http.request(method, path, json={"input_file_id": file} if file else None)
            return "" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"

    # -- attacks -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        account = PlatformClient(self._platform.state, self._platform.url, HOSTILE_ROLE, ["account"])
        account.top_up(CREDIT_CENTS)
        self._key = account.create_prediction_key()
        self._paying = Client(self._platform.url, self._key)

    def _http(self, key: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self._platform.url, headers=headers, timeout=WAIT_SECONDS, trust_env=False)

    def _line(self, number: int) -> str:
        model = f"faults/none-{number}" if number >= 0 else self._model
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        return (
            json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
        )

    async def _upload(self, content: str, key: str) -> str:
        """Return the id of a file, "" where it was refused."""
        async with self._http(key) as http:
            files = {"file": ("rows.jsonl", content.encode())}
            answer = await http.post("/v1/files", files=files, data={"purpose": "batch"})
            return str(answer.json().get("id", ""))

    async def _quote(self, file: str) -> None:
        """Ask for the cost of a file that names 20,000 models, and hang up after five seconds."""
        async with self._http(self._key) as http:
            with suppress(httpx.TimeoutException):
                await http.post("/v1/batches/quote", json={"input_file_id": file}, timeout=5.0)

    async def _slow_upload(self) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
            async for piece in self._trickle():
                yield piece

        headers = {"content-type": "multipart/form-data; boundary=x"}
        async with self._http(self._key) as http:
            with suppress(httpx.HTTPError):
                await http.post("/v1/files", content=body(), headers=headers)

    async def _slow_body(self) -> None:
        async with self._http(self._key) as http:
            with suppress(httpx.HTTPError):
                await http.post("/v1/chat/completions", content=self._trickle())

    async def _trickle(self) -> AsyncIterator[bytes]:
        """Yield a byte a second until the attack is over."""
        while not self._over.is_set():
            yield b" "
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), 1.0)

    def _bomb(self, number: int) -> bytes:
        """A schema whose trial takes seconds of a processor."""
        names = (f"{self._seed} {number} {index * 7919 % 6007:05}" for index in range(_PROPERTIES))
        schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
        form = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": schema}}
        return body_of(self._model, f"bomb {number}", max_tokens=1, stream=False, response_format=form)

    def _free_ride(self, chosen: dict[str, Any]) -> bytes:
        options = {"max_tokens": 24, **chosen}
        limit = options.pop("max_tokens")
        return body_of(self._model, f"free ride {self._seed} {chosen}", max_tokens=limit, stream=False, **options)

    async def _drain(self, attack: Attack, number: int) -> None:
        """Ask without money: nothing may be held, computed or answered."""
        text = f"drain {self._seed} {number}"
        call = await self._penniless.raw("drain", body_of(self._model, text, max_tokens=24, stream=False))
        if any(given.whole or given.prediction_id for given in call.given):
            attack.contradictions.append(f"a call without money was answered: {call.outcome}")
