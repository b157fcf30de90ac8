"""Simulated replicas: `python -m benchmarks.control_plane.replicas`, an order as JSON on its standard input.

Each holds one real link and sends what a replica of so many residents sends: a view at a steady rate, in each a changed
load and now and then another adapter, and everything every ten seconds. It prints a line of JSON when all links are
open, and one after a withdrawal, when every replica heard of it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass

from protocol.admin import ReplicaFigures
from protocol.fleet import (
    FLEET_CONTENT_TYPE,
    FLEET_PATH,
    FULL_SECONDS,
    FleetView,
    FrameReader,
    KeyChange,
    LoadNow,
    decode_news,
    encode_frame,
    pack_keys,
)
from protocol.replicas import INTERNAL_PATH

FIGURES_SECONDS = 2.0
FIGURES = ReplicaFigures(
    steps=1_000_000,
    max_adapters_in_one_batch=16,
    batches_with_several_adapters=900_000,
    prompt_tokens=10**9,
    generated_tokens=10**8,
    finished=10**6,
    failed=10,
    running=12,
    waiting=3,
    kv_blocks_used=9_000,
    kv_blocks_total=10_000,
    seats=16,
)


@dataclass(frozen=True)
class Order:
    """ports: of web processes, one after the other; residents, prefixes: of each replica; churn: views until another
    adapter comes"""

    ports: list[int]
    replicas: int
    residents: int
    prefixes: int
    views_a_second: float
    churn: int
    digest: str


class Counts:
    """Counts over all replicas."""

    def __init__(self) -> None:
        self.open = 0
        self.views = 0
        self.renewed = 0
        self.heard: dict[int, float] = {}  # replica → when it heard of the withdrawal
        self.lost = 0


async def replica(number: int, order: Order, counts: Counts) -> None:
    chance = random.Random(number)
    await asyncio.sleep(chance.random() * 5)  # they do not start in one moment
    port = order.ports[number % len(order.ports)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {INTERNAL_PATH}{FLEET_PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer session-{number}\r\n"
        f"content-type: {FLEET_CONTENT_TYPE}\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    writer.write(head.encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer.decode())
    counts.open += 1
    listening = asyncio.create_task(_listen(number, order, reader, counts))
    adapters = [chance.getrandbits(64) for _ in range(order.residents)]
    prefixes = pack_keys([chance.getrandbits(64) for _ in range(order.prefixes)])
    seq, full_at, figures_at = 0, float("-inf"), float("-inf")
    while not listening.done():
        seq, now = seq + 1, time.monotonic()
        full, figures = now - full_at >= FULL_SECONDS, now - figures_at >= FIGURES_SECONDS
        change = KeyChange()
        if full:
            full_at, change = now, KeyChange(pack_keys(adapters))
        elif seq % order.churn == 0:
            gone, adapters[0] = adapters[0], chance.getrandbits(64)
            change = KeyChange(pack_keys([adapters[0]]), pack_keys([gone]))
            chance.shuffle(adapters[:2])
        figures_at = now if figures else figures_at
        frame = encode_frame(
            FleetView(
                seq,
                full,
                LoadNow(16, chance.randrange(17), chance.randrange(5)),
                seq,
                0.1,
                adapters=change,
                prefixes=KeyChange(prefixes if full else b""),
                figures=FIGURES if figures else None,
            )
        )
        writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        await writer.drain()
        counts.views += 1
        await asyncio.sleep(1 / order.views_a_second)
    counts.lost += 1
    writer.close()


async def _listen(number: int, order: Order, reader: asyncio.StreamReader, counts: Counts) -> None:
    frames = FrameReader()
    while True:
        length = int(await reader.readline() or b"0", 16)
        if not length:
            return
        data = await reader.readexactly(length + 2)
        for body in frames.feed(data[:-2]):
            news = decode_news(body)
            counts.renewed += 1
            if order.digest in news.revoked:
                counts.heard.setdefault(number, time.time())


async def main() -> None:
    order = Order(**json.loads(sys.stdin.readline()))
    counts = Counts()
    tasks = [asyncio.create_task(replica(number, order, counts)) for number in range(order.replicas)]
    while counts.open < order.replicas:
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.1)
    print(json.dumps({"open": counts.open}), flush=True)
    loop = asyncio.get_running_loop()
    while (command := (await loop.run_in_executor(None, sys.stdin.readline)).strip()) != "heard":
        if not command:
            return
        print(json.dumps({"views": counts.views, "renewed": counts.renewed, "lost": counts.lost}), flush=True)
    while len(counts.heard) < order.replicas:
        await asyncio.sleep(0.05)
    print(json.dumps({"heard_at": sorted(counts.heard.values())}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
