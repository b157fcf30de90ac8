"""Clients of a gateway that take little of the cores they share with it: 20 µs per request, in one process.

python -m benchmarks.gateway.load < plan.json > outcome.json
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import Counter, deque
from typing import Any

import msgspec
import uvloop

LIMIT_SECONDS = 60.0  # for the last answers


class Plan(msgspec.Struct, kw_only=True):
    """The requests of one run.

    `ports`: of gateways, in turn. `keys`: API keys, in turn. `connections`: over all ports. `per_second`: 0 sends the
    next request on a connection as soon as it is free, otherwise requests start at this rate, on free connections.
    `requests`: ends the run before `seconds` are over; 0 does not. `warm_up`: seconds before the first that counts.
    """

    ports: list[int]
    keys: list[str]
    body: str
    connections: int
    seconds: float
    path: str = "/v1/chat/completions"
    warm_up: float = 0.0
    per_second: float = 0.0
    requests: int = 0
    settled: str = '"settled":true'  # in each answer that was charged


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a plan: answers by status, 200 without a charge, and the latencies of 200 in milliseconds."""

    statuses: dict[str, int]
    unsettled: int
    lost: int
    seconds: float
    latencies_ms: list[float]
    cpu_seconds: float


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self._run = run
        self._data = b""
        self._started = 0.0
        self._length = -1  # of head and body; -1: the head is not complete
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self, request: bytes, started: float) -> None:
        self._started = started
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        if self._length < 0:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            if at < 0:
                raise ValueError("an answer without a length")
            self._length = end + 4 + int(head[at + 15 :].partition(b"\r\n")[0])
        if len(self._data) >= self._length:
            answer, self._data, self._length = self._data, b"", -1
            self._run.answered(self, answer, self._started)

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.connection_lost(self, self._started)


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.statuses: Counter[str] = Counter()
        self.unsettled = self.lost = self.sent = self.waiting = 0
        self.latencies: list[float] = []
        self._free: deque[_Connection] = deque()
        self._due: deque[float] = deque()  # starts that waited for a free connection
        self._requests = itertools.cycle([self._request(key) for key in plan.keys])
        self._done = asyncio.Event()
        self._settled = plan.settled.encode()
        self._counts_from = self._until = self.first = self.last = 0.0

    def _request(self, key: str) -> bytes:
        lines = (
            f"POST {self.plan.path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(self.plan.body)}\r\n\r\n"
        )
        return lines.encode() + self.plan.body.encode()

    async def go(self) -> None:
        loop = asyncio.get_running_loop()
        for number in range(self.plan.connections):
            port = self.plan.ports[number % len(self.plan.ports)]
            _, connection = await loop.create_connection(lambda: _Connection(self), "127.0.0.1", port)
            self._free.append(connection)
        start = time.perf_counter()
        self._counts_from = start + self.plan.warm_up
        self._until = self._counts_from + self.plan.seconds
        if self.plan.per_second:
            await self._at_a_rate(start)
        else:
            for connection in list(self._free):
                self._next(connection, time.perf_counter())
        if self.waiting:
            self._done.clear()  # at a rate, nothing may have been under way for a moment
            async with asyncio.timeout(self.plan.warm_up + self.plan.seconds + LIMIT_SECONDS):
                await self._done.wait()

    async def _at_a_rate(self, start: float) -> None:
        for number in range(int((self.plan.warm_up + self.plan.seconds) * self.plan.per_second)):
            due = start + number / self.plan.per_second
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            if self._free:
                self._send(self._free.popleft(), due)
            else:
                self._due.append(due)

    def _next(self, connection: _Connection, now: float) -> None:
        if now < self._until and (not self.plan.requests or self.sent < self.plan.requests):
            self._send(connection, now)
        elif not self.waiting:
            self._done.set()

    def _send(self, connection: _Connection, started: float) -> None:
        self.sent += 1
        self.waiting += 1
        connection.send(next(self._requests), started)

    def answered(self, connection: _Connection, answer: bytes, started: float) -> None:
        now = time.perf_counter()
        self.waiting -= 1
        if self._counts_from <= started and now <= self._until + (LIMIT_SECONDS if self.plan.per_second else 0):
            self.first = self.first or started
            self.last = now
            self.statuses[answer[9:12].decode()] += 1
            if answer[9:12] == b"200":
                self.latencies.append((now - started) * 1e3)
                self.unsettled += self._settled not in answer
        if not self.plan.per_second:
            self._next(connection, now)
        elif self._due:
            self._send(connection, self._due.popleft())
        else:
            self._free.append(connection)
            if not self.waiting:
                self._done.set()

    def connection_lost(self, connection: _Connection, started: float) -> None:
        if started:
            self.lost += 1
            self.waiting -= 1
            if not self.waiting:
                self._done.set()


async def _main(plan: Plan) -> Outcome:
    run = _Run(plan)
    await run.go()
    return Outcome(
        statuses=dict(run.statuses),
        unsettled=run.unsettled,
        lost=run.lost,
        seconds=run.last - run.first,
        latencies_ms=[round(one, 3) for one in run.latencies],
        cpu_seconds=time.process_time(),
    )


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(msgspec.to_builtins(uvloop.run(_main(msgspec.json.decode(sys.stdin.read(), type=Plan)))))
    )
