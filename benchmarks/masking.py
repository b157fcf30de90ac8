"""Masking of personal data: milliseconds per text by its length, and what others notice of it.

    python -m benchmarks.masking

Texts are prose with a date and a price in each sentence, prose with personal data in each sentence, and nothing but
telephone numbers, which is the slowest that a caller can send. All kinds are searched for. Times are CPU time, of the
gateway and of the process that searches, so a busy machine changes them little.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marketplace.gateway.guarding import Guarding, Outgoing
from marketplace.guards import finder as finder_module
from marketplace.guards.finder import CPU_SECONDS, MAX_CHARACTERS, Finder
from marketplace.guards.masking import mask_body, texts_of
from marketplace.guards.policies import KINDS, NO_POLICY, Policy

PLAIN = "The order of 2026-11-26 over $1,234.56 was paid at once, and the customer asks for the second invoice. "
PERSONAL = "Write to bob.smith@example.com or call +44 20 7946 0958 about the card 4111 1111 1111 1111, please. "
TEXTS = {"prose": PLAIN, "personal data": PERSONAL, "telephone numbers": "020 7946 0958, "}
LENGTHS = (26, 190, 1_900, 10_000, MAX_CHARACTERS)
REPEATS = 9
POLICY = Policy(masked=frozenset(KINDS))


def main() -> int:
    """Print the tables; the exit status is 1 where the longest text takes longer than a search may."""
    return asyncio.run(_measure())


async def _measure() -> int:
    finder_module.SEARCH_SECONDS = 300.0  # the machine may be busy: processor time decides
    finder = Finder()
    began = time.perf_counter()
    await finder.find(list(KINDS), ["1"], asker="benchmark")
    process = finder._process
    assert process is not None
    print(f"first text: {time.perf_counter() - began:.1f} s, process of {_megabytes(process.pid)} MB\n")
    print(f"{'ms per request of':<20}" + "".join(f"{length:>10,}" for length in LENGTHS) + "  characters")
    slowest = 0.0
    for name, piece in TEXTS.items():
        times = [await _milliseconds(finder, (piece * (length // len(piece) + 1))[:length]) for length in LENGTHS]
        slowest = max(slowest, *times)
        print(f"{name:<20}" + "".join(f"{one:>10.2f}" for one in times))
    alone, beside = await _lag(), await _lag_beside(finder)
    print(f"\nlateness of the event loop, 99th of 100: {alone:.1f} ms alone, {beside:.1f} ms beside a search")
    print(f"a request without a policy: {await _without_policy() * 1e6:.1f} µs, no process, no copy")
    finder.close()
    return 0 if slowest < CPU_SECONDS * 1000 else 1


async def _milliseconds(finder: Finder, text: str) -> float:
    """Return the median CPU time to mask a message, with the walk through its body."""
    assert finder._process is not None
    body = {"model": "a/b", "messages": [{"role": "user", "content": text}]}
    times = []
    for _ in range(REPEATS if len(text) < 20_000 else 3):
        began = time.process_time() + _cpu_seconds(finder._process.pid)
        texts = texts_of(body)
        found = await finder.find(list(KINDS), texts, asker="benchmark") if texts else []
        mask_body(body, dict(zip(texts, found, strict=True)), POLICY, pseudonym=str)
        times.append(time.process_time() + _cpu_seconds(finder._process.pid) - began)
    return statistics.median(times) * 1000


async def _lag() -> float:
    """Return by how many milliseconds the loop is late for others, the 99th percentile of sleeps of 1 ms."""
    late = []
    for _ in range(300):
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - began - 0.001)
    return statistics.quantiles(late, n=100)[98] * 1000


async def _lag_beside(finder: Finder) -> float:
    text = (TEXTS["telephone numbers"] * MAX_CHARACTERS)[:MAX_CHARACTERS]
    search = asyncio.ensure_future(finder.find(list(KINDS), [text], asker="benchmark"))
    late = await _lag()
    await search
    return late


async def _without_policy() -> float:
    """Return the CPU seconds that guards take of a request whose key and model have no policy."""
    guarding, repeats = Guarding(None), 10_000  # type: ignore[arg-type]
    unguarded: Any = SimpleNamespace(guards=NO_POLICY)
    came = Outgoing(b"{}", None)  # type: ignore[arg-type]
    began = time.process_time()
    for _ in range(repeats):
        assert await guarding.outgoing(unguarded, unguarded, came, {}, None) is came  # type: ignore[arg-type]
    taken = (time.process_time() - began) / repeats
    assert guarding.finder._process is None
    guarding.close()
    return taken


def _cpu_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _megabytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 // 10**6


if __name__ == "__main__":
    raise SystemExit(main())
