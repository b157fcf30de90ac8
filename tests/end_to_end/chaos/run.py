"""The chaos run: one fault after the other hits one of three replicas, or the platform, while callers go on."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg

from tests.end_to_end.chaos.audit import ChaosVerdict, Fault, audit_chaos
from tests.end_to_end.chaos.market import open_chaos_market
from tests.end_to_end.chaos.node import Node, build_clock
from tests.end_to_end.chaos.traffic import Traffic
from tests.end_to_end.faults.calls import Client
from tests.end_to_end.faults.rows import busiest_replica, open_holds, read_rows
from tests.end_to_end.platform import Platform

REPLICAS = 3
BACK_SECONDS = 240.0  # for a killed process to be back: a bound of the test, not of the platform
LONG_SECONDS = 11.5  # a fault that outlasts the ten seconds after which silence is a loss
CREDIT_CENTS = 20_000
_PROBES = 3  # new calls right after each fault


class ChaosRun:
    """`prepare`, then faults by name, then `finish` with the audit."""

    def __init__(self, platform: Platform, *, seed: int, lost_machines: int, callers: int = 6) -> None:
        self._platform, self._seed = platform, seed
        self._random = random.Random(seed)
        self._client = Client(platform.url, platform.api_key)
        self._traffic = Traffic(self._client, seed=seed, callers=callers)
        self._names = [f"chaos-{number}" for number in range(REPLICAS + lost_machines + 1)]
        self._folder = Path(tempfile.mkdtemp(prefix="intarsia-chaos-"))
        self._nodes: list[Node] = []
        self._stranger: Node | None = None
        self._began = time.time()
        self.faults: list[Fault] = []
        self.counted: Counter[str] = Counter()

    async def prepare(self) -> None:
        """Start the replicas, all at once, and the callers."""
        await asyncio.to_thread(self._platform.account.top_up, CREDIT_CENTS)
        self._market = await asyncio.to_thread(open_chaos_market, self._platform, list(self._names))
        self._clock = await asyncio.to_thread(build_clock, self._folder)
        self._nodes = [self._new_node() for _ in range(REPLICAS)]
        self._stranger = self._new_node(other_protocol=True)
        for node in (*self._nodes, self._stranger):
            node.start()
        await asyncio.gather(*(asyncio.to_thread(node.wait_until_ready) for node in self._nodes))
        await self._until_answered()
        self._began = time.time()
        self._traffic.timed.clear()
        self._traffic.start()

    def _new_node(self, *, other_protocol: bool = False) -> Node:
        name = self._names.pop(0)
        credential = self._market.credentials[name]
        folder = self._folder / name
        return Node(
            name, credential, self._market.model, folder, self._platform.url, self._clock, other_protocol=other_protocol
        )

    async def short(self) -> None:
        """Every kind of fault, one after the other: callers may lose one replica at a time, not two."""
        await self.fill_disk()
        await self.step_clock()
        await self.freeze(long=False)
        await self.partition(long=False)
        await self.kill_valkey()
        await self.freeze(long=True)
        await self.kill()
        await self.lose_machine()
        await self.kill_gateway()

    # -- faults of a machine -----------------------------------------------------------------------------------------

    async def kill(self) -> None:
        """kill -9; the process starts again by itself."""
        node = self._choose()
        async with _Hit(self, "kill -9", node):
            node.kill()
        node.start()
        await asyncio.to_thread(node.wait_until_ready)

    async def lose_machine(self) -> None:
        """The process and its disk are gone for ever; another machine takes its place."""
        node = self._choose()
        async with _Hit(self, "lost machine", node):
            node.lose()
        new = self._nodes[self._nodes.index(node)] = self._new_node()
        node.close()
        new.start()
        await asyncio.to_thread(new.wait_until_ready)

    async def freeze(self, *, long: bool) -> None:
        """SIGSTOP, then SIGCONT."""
        node = self._choose()
        async with _Hit(self, "SIGSTOP", node):
            node.freeze()
            await asyncio.sleep(self._length(long))
            node.thaw()

    async def partition(self, *, long: bool) -> None:
        """Its network is cut: towards it, away from it, or both."""
        node = self._choose()
        cables = self._random.choice(([node.inward], [node.outward], [node.inward, node.outward]))
        async with _Hit(self, "partition", node):
            for cable in cables:
                cable.cut()
            await asyncio.sleep(self._length(long))
            for cable in cables:
                cable.mend()

    async def fill_disk(self) -> None:
        """No byte can be written on its machine."""
        node = self._choose()
        async with _Hit(self, "full disk", node):
            node.fill_disk()
            await asyncio.sleep(self._length(long=False))
            node.empty_disk()

    async def step_clock(self) -> None:
        """Its wall clock steps by minutes or hours, then back."""
        node = self._choose()
        async with _Hit(self, "clock step", node):
            node.step_clock(self._random.choice((-7200, -90, 90, 7200)))
            await asyncio.sleep(self._length(long=False))
            node.step_clock(0)

    # -- faults of the platform --------------------------------------------------------------------------------------

    async def kill_gateway(self) -> None:
        """The web process, with every call in it, is killed and starts again."""
        async with _Hit(self, "gateway killed", None, probes=0) as fault:
            await self._kill_process("web", fault)

    async def restart_gateway(self) -> None:
        """The web process is told to stop and starts again."""
        async with _Hit(self, "gateway restarted", None, probes=0) as fault:
            await self._kill_process("web", fault, signal.SIGTERM)

    async def kill_valkey(self) -> None:
        """Valkey is killed and starts again."""
        async with _Hit(self, "valkey killed", None) as fault:
            await self._kill_process("valkey", fault)

    async def _kill_process(self, name: str, fault: Fault, number: int = signal.SIGKILL) -> None:
        pid = await self._pid(name)
        os.kill(pid, number)
        await _until(lambda: not Path(f"/proc/{pid}").exists())
        await self._pid(name)
        await self._until_answered()
        fault.ended = time.time()

    async def _pid(self, name: str) -> int:
        found: list[int] = []

        def look() -> bool:
            try:
                found.append(self._platform.pid_of(name))
            except LookupError:  # between its death and its restart
                return False
            return True

        await _until(look)
        return found[-1]

    # -- parts -------------------------------------------------------------------------------------------------------

    def _choose(self) -> Node:
        """Return the replica that has most calls, or now and then any other: a fault is to hit somebody."""
        if self._random.random() < 0.75:
            busiest = busiest_replica(self._market.database_url)
            for node in self._nodes:
                if node.name == busiest:
                    return node
        return self._random.choice(self._nodes)

    def _length(self, long: bool) -> float:
        return LONG_SECONDS + self._random.random() if long else self._random.uniform(0.3, 3.0)

    async def pause(self) -> None:
        """Let streams get to some point of their own before the next fault."""
        await asyncio.sleep(self._random.uniform(0.2, 0.8))

    async def probe(self) -> None:
        """Make a new call of each kind, one after the other."""
        for number in range(_PROBES):
            await self._traffic.call("probe", stream=number % 2 == 0, tokens=4)

    async def _until_answered(self) -> None:
        deadline = time.monotonic() + BACK_SECONDS
        while time.monotonic() < deadline:
            timed = await self._traffic.call("is it back", stream=False, tokens=2)
            if timed.whole:
                return
            await asyncio.sleep(0.2)
        raise TimeoutError("the platform did not come back")

    # -- the end -----------------------------------------------------------------------------------------------------

    async def finish(self) -> ChaosVerdict:
        """Let the callers end, wait until every hold is closed, and audit."""
        await self._traffic.stop()
        url = self._market.database_url
        await _until(lambda: _is_quiet(url, self._began), seconds=90.0)
        rows = await asyncio.to_thread(read_rows, url, self._began)
        stranger = self._stranger
        assert stranger is not None
        verdict = audit_chaos(rows, self._traffic.timed, self.faults)
        if any(row["name"] == stranger.name for row in rows.replicas):
            verdict.faults.append("a replica of another protocol was registered")
        if "protocol" not in stranger.log():
            verdict.faults.append("a replica of another protocol was not told why it is refused")
        return verdict

    def close(self) -> None:
        """End the replicas."""
        for node in (*self._nodes, *([self._stranger] if self._stranger else [])):
            node.close()
        shutil.rmtree(self._folder)


class _Hit:
    """One fault while it lasts: new calls are made as it begins."""

    def __init__(self, run: ChaosRun, kind: str, node: Node | None, *, probes: int = _PROBES) -> None:
        self._run, self._probes = run, probes
        self._fault = Fault(kind, None if node is None else node.name, 0.0, 0.0)

    async def __aenter__(self) -> Fault:
        await self._run.pause()
        self._fault.began = time.time()
        self._run.faults.append(self._fault)
        self._run.counted[self._fault.kind] += 1
        self._probing = asyncio.create_task(self._run.probe()) if self._probes else None
        return self._fault

    async def __aexit__(self, *_: object) -> None:
        self._fault.ended = self._fault.ended or time.time()
        if self._probing is not None:
            await self._probing


Act = Callable[[ChaosRun], Awaitable[None]]
# The faults of a long run, and how often each comes up.
ACTS: dict[str, tuple[Act, int]] = {
    "kill": (ChaosRun.kill, 24),
    "lose": (ChaosRun.lose_machine, 8),
    "freeze": (lambda run: run.freeze(long=False), 20),
    "freeze long": (lambda run: run.freeze(long=True), 8),
    "partition": (lambda run: run.partition(long=False), 14),
    "partition long": (lambda run: run.partition(long=True), 6),
    "disk": (ChaosRun.fill_disk, 8),
    "clock": (ChaosRun.step_clock, 8),
    "gateway": (ChaosRun.kill_gateway, 2),
    "gateway restart": (ChaosRun.restart_gateway, 1),
    "valkey": (ChaosRun.kill_valkey, 1),
}


def order_of(points: int, seed: int) -> list[str]:
    """Return the faults of a run in their order: each kind by its share, at least one of each."""
    total = sum(weight for _, weight in ACTS.values())
    names = [name for name, (_, weight) in ACTS.items() for _ in range(max(1, round(points * weight / total)))]
    names += ["kill"] * (points - len(names))
    random.Random(seed).shuffle(names)
    return names


def _is_quiet(database_url: str, since: float) -> bool:
    try:
        return not open_holds(database_url, since)
    except psycopg.OperationalError:
        return False


async def _until(condition: Callable[[], bool], seconds: float = BACK_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise TimeoutError("did not happen in time")
        await asyncio.sleep(0.05)
