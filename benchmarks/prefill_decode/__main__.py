"""Bytes per second of a pull over loopback, and what it saves.

    python -m benchmarks.prefill_decode [--base FOLDER] [--tokens 512,1495] [--rounds 5] [--out FOLDER]

Two replicas of one base model in this process: one computes prompts, the other pulls them over TLS 1.3 and answers,
then computes the same prompt itself in another scope. The figures are medians; each round has prompts of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import statistics
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks import machine
from benchmarks.contracts import ADAPTERS
from benchmarks.prefill_decode.report import report
from benchmarks.serving.__main__ import DEFAULT_BASE
from protocol.encoding import encode_base64url
from protocol.pulls import pull_ticket, sign_pull_ticket
from serving.adapters.directory import DirectoryAdapterSource
from serving.config import ServingConfig
from serving.core import AdapterRef, Request, SamplingParams
from serving.engine import Engine
from serving.platform.kv_reader import HttpsTransport, KvReader
from serving.platform.kv_source import KvSource
from serving.platform.leases import LeaseTable
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier
from serving.replica import Base, build_engine

ANSWER_TOKENS = 16


@dataclass
class Pair:
    """A source of KV and a reader, each with the engine that it belongs to."""

    platform: Ed25519PrivateKey
    source: Engine
    reader: Engine
    server: KvSource
    client: KvReader
    ids: tuple[uuid.UUID, uuid.UUID]
    keys: tuple[str, str]

    async def bring(self, request: Request) -> Request:
        """Pull a request's prompt."""
        ticket = pull_ticket(
            jti=uuid.uuid4(),
            attempt=1,
            source_id=self.ids[0],
            source_url=f"https://127.0.0.1:{self.server.port}",
            source_key=self.keys[0],
            reader_id=self.ids[1],
            reader_key=self.keys[1],
            adapter=None,
            cache_scope=request.cache_scope,
        )
        return await self.client.bring(request, ticket, sign_pull_ticket(ticket, self.platform, kid="platform"))


@contextmanager
def pair(base: Base, longest: int) -> Iterator[Pair]:
    """Run two engines, whose pools have room for some prompts of the longest kind."""
    config = ServingConfig(
        model=base.folder, adapters=ADAPTERS, device="cpu", kv_cache_mb=max(256, longest // 4), elastic_memory=False
    )
    engines = [build_engine(config, base, DirectoryAdapterSource(ADAPTERS, base.spec)) for _ in range(2)]
    platform = Ed25519PrivateKey.generate()
    public, ids = {"platform": platform.public_key().public_bytes_raw()}, (uuid.uuid4(), uuid.uuid4())
    signers, tickets = [ReceiptSigner("00" * 32) for _ in ids], [TicketVerifier() for _ in ids]
    for verifier, replica_id in zip(tickets, ids, strict=True):
        verifier.adopt(str(replica_id), public)
    layout = engines[0].planner.exchange.layout
    listener = socket.create_server(("127.0.0.1", 0))
    server = KvSource(engines[0], tickets[0], LeaseTable(), signers[0], layout, listener)
    client = KvReader(engines[1], HttpsTransport(signers[1]), layout)
    keys = encode_base64url(signers[0].public_bytes()), encode_base64url(signers[1].public_bytes())
    for engine in engines:
        engine.start()
        engine.ready.wait()
    server.start()
    try:
        yield Pair(platform, engines[0], engines[1], server, client, ids, keys)
    finally:
        client.close()
        server.close()
        for engine in engines:
            engine.stop()


async def answer(engine: Engine, request: Request) -> tuple[list[int], float]:
    """Return the tokens of an answer, and the seconds until the first."""
    began, first, tokens = time.perf_counter(), 0.0, []
    async for delta in engine.submit(request):
        first = first or time.perf_counter() - began
        tokens += delta.token_ids
    return tokens, first


async def measure(two: Pair, tokens: int, rounds: int) -> dict[str, Any]:
    """Return the figures of prompts of one length."""
    chance, runs = random.Random(tokens), []
    for number in range(rounds):
        prompt = tuple(chance.randrange(5, two.reader.vocab_size - 5) for _ in range(tokens))
        greedy = SamplingParams(temperature=0, ignore_eos=True)
        request = Request(f"{tokens}-{number}", "tenant", "scope", AdapterRef(), prompt, greedy, ANSWER_TOKENS)
        await answer(two.source, replace(request, max_tokens=0))
        before, began = two.reader.planner.exchange.counts.placed_blocks, time.perf_counter()
        brought = await two.bring(request)
        pull = time.perf_counter() - began
        blocks = two.reader.planner.exchange.counts.placed_blocks - before
        apart, first = await answer(two.reader, brought)
        alone, computed = await answer(two.reader, replace(request, request_id="alone", cache_scope="another"))
        runs.append((blocks * two.reader.planner.exchange.block_bytes, pull, first, computed, apart == alone))
    size, pull, first, computed = (statistics.median(column) for column in list(zip(*runs, strict=True))[:4])
    return {
        "tokens": tokens,
        "bytes": size,
        "pull_ms": pull * 1000,
        "gb_per_s": size / pull / 1e9,
        "first_token_ms": first * 1000,
        "computed_ms": computed * 1000,
        "same": sum(run[4] for run in runs),
        "runs": rounds,
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, and write the results; 1 where a token differs or a pull failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE)
    parser.add_argument("--tokens", default="512,1495")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder of results; none is written without it")
    options = parser.parse_args(arguments)
    lengths = [int(text) for text in options.tokens.split(",")]
    about = machine.describe()
    with pair(Base.from_dir(options.base), max(lengths)) as two:
        rows = [asyncio.run(measure(two, tokens, options.rounds)) for tokens in lengths]
        outcomes = dict(two.client.outcomes)
    results = {"machine": about, "rows": rows, "outcomes": outcomes}
    print(report(results))
    if options.out is not None:
        machine.write_suite(options.out, "prefill_decode", results)
    return 0 if set(outcomes) == {"pulled"} and all(row["same"] == row["runs"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
