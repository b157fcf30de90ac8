"""The fault run itself: predictions flow while processes die, replicas lie and clients hang up; then the audit."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import psycopg

from tests.end_to_end.faults.audit import Outage, Verdict, audit
from tests.end_to_end.faults.calls import Call, Client, body_of
from tests.end_to_end.faults.clerk import Clerk
from tests.end_to_end.faults.hostile import Attack, Hostile
from tests.end_to_end.faults.market import open_market
from tests.end_to_end.faults.rows import open_holds, open_payouts, read_rows
from tests.end_to_end.faults.scripted_replica import Script, ScriptedReplica
from tests.end_to_end.platform import Platform
from tests.marketplace.gateway.settlement.hostile_receipts import LIES

REAL_MODEL = "intarsia/smollm2-135m-instruct"
SCRIPTED, LEAVING = "scripted", "leaving"
# A killed process has this long to be back, and a hold to close: bounds of the test, not of the platform.
BACK_SECONDS = 240.0
CREDIT_CENTS = 20_000  # of the consumer, besides what a platform for tests begins with
_NAMES = {"web": "gateway", "serving": "replica"}  # how the audit calls them


class FaultRun:
    """One run on one platform. `counted` has the faults by kind."""

    def __init__(self, platform: Platform, *, seed: int, in_flight: int) -> None:
        self._platform, self._in_flight = platform, in_flight
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._seed = seed
        self.client = Client(platform.url, platform.api_key)
        self.counted: Counter[str] = Counter()
        self._outages: list[Outage] = []
        self._began = time.time()
        self._scripted: ScriptedReplica | None = None
        self._leaving: ScriptedReplica | None = None
        self._database_url = ""
        self._clerk = Clerk(platform, seed=seed)
        self._hostile: Hostile | None = None
        self.attacks: list[Attack] = []

    async def prepare(self) -> None:
        """Open the market, enrol the scripted replicas, and let the clerk begin: it works through all that follows."""
        await asyncio.to_thread(self._platform.account.top_up, CREDIT_CENTS)
        market = await asyncio.to_thread(open_market, self._platform, SCRIPTED, LEAVING)
        self._database_url = market.database_url
        self._hostile = Hostile(
            self._platform,
            model=REAL_MODEL,
            neighbour=lambda: self.client.raw("neighbour", self.real(stream=True, max_tokens=4)),
            penniless_key=market.penniless_key,
            seed=self._seed,
        )
        self._scripted, self._leaving = market.replicas[SCRIPTED], market.replicas[LEAVING]
        await asyncio.gather(self._scripted.boot(), self._leaving.boot())
        await self._until_it_answers()
        await self._clerk.start()

    async def finish(self) -> None:
        """Let clerk and scripted replicas leave."""
        await self._clerk.finish()
        for replica in (self._scripted, self._leaving):
            if replica is not None:
                await replica.stop()

    @property
    def hostile_calls(self) -> list[Call]:
        """Return the predictions that the hostile tenant asked for."""
        return [] if self._hostile is None else self._hostile.calls

    # -- calls -------------------------------------------------------------------------------------------------------

    def scripted(self, *, stream: bool, model: str = SCRIPTED, **script: Any) -> bytes:
        """Return a body for a scripted replica."""
        made = Script(name=f"{self._seed}-{next(self._numbers)}", **script)
        return body_of(f"faults/{model}", made.text(), max_tokens=64, stream=stream)

    def real(self, *, stream: bool, max_tokens: int = 24) -> bytes:
        """Return a body for the real replica, which generates all of `max_tokens`."""
        text = f"Count from {next(self._numbers)} upwards, seed {self._seed}."
        return body_of(REAL_MODEL, text, max_tokens=max_tokens, stream=stream, ignore_eos=True, temperature=0)

    async def edges(self) -> None:
        """Every fault that needs no process to die, all at once."""
        client, script = self.client, self.scripted
        slow = {"tokens": 60, "pause": 0.1}
        faults: list[tuple[str, Coroutine[Any, Any, Call]]] = [
            ("split body", client.raw("split body", script(stream=False, split=True))),
            ("split body", client.raw("split body of 400 KB", script(stream=False, split=True, padding=400_000))),
            ("split body", client.package("package, split body", script(stream=False, split=True, padding=90_000))),
            ("cut", client.raw("cut before the headers", script(stream=False, cut=0))),
            ("cut", client.raw("stream cut before the headers", script(stream=True, cut=0))),
            ("cut", client.raw("cut in the body", script(stream=False, cut=1))),
            ("cut", client.raw("stream cut after 3 tokens", script(stream=True, cut=3))),
            ("cut", client.package("package, cut in the body", script(stream=False, cut=1))),
            ("no receipt", client.raw("no receipt", script(stream=False, silent=True))),
            ("no receipt", client.raw("stream without a receipt", script(stream=True, silent=True))),
            ("refusal", client.raw("refused", script(stream=False, refuse=True))),
            ("timeout", client.package("package, timeout", script(stream=False, **slow), timeout=1.0)),
            ("timeout", client.package("package, stream timeout", script(stream=True, tokens=9, pause=3), timeout=1.5)),
            ("hang-up", client.raw("hang-up of a whole answer", script(stream=False, **slow), after=0.5)),
            ("hang-up", client.raw("reset of a whole answer", script(stream=False, **slow), after=0.5, abrupt=True)),
            ("hang-up", client.raw("hang-up at once", script(stream=False, **slow), after=0.0)),
            ("hang-up", client.raw("hang-up of a stream", script(stream=True, **slow), hang_up=_at(3))),
            ("hang-up", client.raw("reset of a stream", script(stream=True, **slow), hang_up=_at(3), abrupt=True)),
            ("hang-up", client.raw("early hang-up", script(stream=True, tokens=9, pause=3), after=0.5)),
            ("hang-up", client.raw("real, hang-up of a stream", self.real(stream=True), hang_up=_at(3))),
            ("hang-up", client.raw("real, hang-up", self.real(stream=False, max_tokens=200), after=0.5)),
        ]
        for lie in LIES:
            stream = self._random.random() < 0.5
            faults.append(("lie", client.raw(f"lie: {lie}", script(stream=stream, lie=lie))))
        honest = [
            client.raw("whole", script(stream=False)),
            client.raw("stream", script(stream=True)),
            client.package("package", script(stream=False)),
            client.package("package, stream", script(stream=True)),
            client.raw("real", self.real(stream=False)),
            client.raw("real, stream", self.real(stream=True)),
            client.package("real, package", self.real(stream=True)),
        ]
        self.counted.update(kind for kind, _ in faults)
        await asyncio.gather(*honest, *(call for _, call in faults))

    async def attack(self, *, bodies: int, rounds: int) -> None:
        """Let the hostile tenant do all that it can while the neighbour works on."""
        assert self._hostile is not None
        attack = await self._hostile.attack(bodies=bodies, rounds=rounds)
        self.counted.update({f"attack: {kind}": count for kind, count in attack.counted.items()})
        self.attacks.append(attack)

    # -- deaths ------------------------------------------------------------------------------------------------------

    async def kill(self, *names: str, in_flight: int | None = None, immediate: bool = True) -> None:
        """Kill these processes at once while predictions are under way; return when all are back and it answers."""
        flight = await self._take_off(self._in_flight if in_flight is None else in_flight)
        began = time.time()
        for name in names:
            pid = await self._pid(name)
            os.kill(pid, signal.SIGQUIT if name == "postgres" and immediate else signal.SIGKILL)
            self.counted[f"kill {name}"] += 1
        await self._until_back(names, began)
        await asyncio.gather(*flight)

    async def crash_scripted(self) -> None:
        """The scripted replica dies with its predictions and boots again."""
        assert self._scripted is not None
        flight = await self._take_off(min(self._in_flight, 50))
        began = time.time()
        await self._scripted.crash()
        await self._scripted.boot()
        self.counted["crash of a scripted replica"] += 1
        self._outages.append(Outage("replica", began, time.time()))
        await asyncio.gather(*flight)

    async def remove_a_replica(self) -> None:
        """A replica leaves for good with predictions under way."""
        assert self._leaving is not None
        bodies = [self.scripted(stream=stream, model=LEAVING, tokens=60, pause=0.2) for stream in (True, True, False)]
        flight = [asyncio.ensure_future(self.client.raw("removed replica", body)) for body in bodies]
        await _until(lambda: self._leaving is not None and self._leaving.generated >= 2 * len(bodies))
        began = time.time()
        await self._leaving.stop()
        self.counted["removal of a replica"] += 1
        await asyncio.gather(*flight)
        self._outages.append(Outage("replica", began, time.time()))

    async def _take_off(self, count: int) -> list[asyncio.Future[Call]]:
        """Begin `count` predictions, most of them streams, and return when all streams have begun to flow."""
        pause = max(0.15, count / 400)  # seconds: the platform sends at most 400 events per second
        started: set[int] = set()
        flight: list[asyncio.Future[Call]] = []
        streams = 0
        for number in range(count):
            if number % 100 == 99:
                await asyncio.sleep(1.1)  # the gateway admits 100 requests per second of one organization
            if number % 10 == 9:
                body = self.scripted(stream=False, tokens=20, pause=pause)
                flight.append(asyncio.ensure_future(self.client.raw("whole in flight", body)))
                continue
            streams += 1

            def saw(tokens: int, number: int = number) -> None:
                if tokens:
                    started.add(number)

            body = self.scripted(stream=True, tokens=20, pause=pause)
            flight.append(asyncio.ensure_future(self.client.raw("stream in flight", body, on_tokens=saw)))
        for stream in (True, False):
            flight.append(asyncio.ensure_future(self.client.raw("real in flight", self.real(stream=stream))))
        await _until(lambda: len(started) == streams or all(one.done() for one in flight))
        return flight

    async def _pid(self, name: str) -> int:
        found: list[int] = []

        def look() -> bool:
            try:
                found.append(self._platform.pid_of(name))
            except LookupError:  # between its last death and its restart
                return False
            return True

        await _until(look)
        return found[-1]

    async def _until_back(self, names: Iterable[str], began: float) -> None:
        await self._until_it_answers()
        if "serving" in names:
            await _until(lambda: _answers(f"{self._platform.info['replica_url']}/readyz"))
        for name in names:
            await self._pid(name)
            self._outages.append(Outage(_NAMES.get(name, name), began, time.time()))

    async def _until_it_answers(self) -> None:
        """A scripted prediction goes through: gateway, database and the scripted replica are up."""
        deadline = time.monotonic() + BACK_SECONDS
        while time.monotonic() < deadline:
            if await asyncio.to_thread(_answers, f"{self._platform.url}/healthz"):
                call = await self.client.raw("is it back", self.scripted(stream=False))
                if call.given and call.given[-1].whole:
                    return
            await asyncio.sleep(0.2)
        raise TimeoutError("the platform did not come back")

    async def short(self) -> None:
        """Every kind of fault once: the edges, a removal, a crash, and the death of each process under load."""
        await self.edges()
        await self.attack(bodies=100, rounds=2)
        await self.remove_a_replica()
        await self.crash_scripted()
        await self.kill("web")
        await self.kill("postgres")
        await self.kill("worker", "beat", "valkey", "stripe-double", "serving")

    # -- afterwards --------------------------------------------------------------------------------------------------

    async def settle_and_audit(self, *, close_seconds: float) -> Verdict:
        """Wait until the clerk is done, every hold is closed and every payout arrived, then audit."""
        await self._clerk.finish()
        deadline = time.monotonic() + BACK_SECONDS
        while time.monotonic() < deadline:
            try:
                holds = await asyncio.to_thread(open_holds, self._database_url, self._began)
                if not holds and not await asyncio.to_thread(open_payouts, self._database_url):
                    break
            except psycopg.OperationalError:
                pass
            await asyncio.sleep(0.5)
        rows = await asyncio.to_thread(read_rows, self._database_url, self._began)
        assert self._scripted is not None
        verdict = audit(
            rows,
            [*self.client.calls, *self.hostile_calls],
            self._outages,
            errands=self._clerk.errands,
            transfers=await asyncio.to_thread(self._clerk.transfers),
            close_seconds=close_seconds,
            expected_incidents=self._scripted.lied,
        )
        verdict.faults += [one for attack in self.attacks for one in attack.contradictions]
        return verdict


def _at(tokens: int) -> Callable[[int], bool]:
    return lambda received: received >= tokens


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


async def _until(condition: Callable[[], bool], seconds: float = BACK_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise TimeoutError("did not happen in time")
        await asyncio.sleep(0.05)
