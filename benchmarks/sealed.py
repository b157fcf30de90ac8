"""The cost of adapter memory: cold starts by stage, plain and sealed, and the effect of loads on running completions.

`python -m benchmarks.sealed` prints two tables and writes sealed.json. Bars:
cold start of a rank-16 adapter p50 <= 30 ms; ITL p99 while adapters are loaded <= 1.2 times that of the same requests
on resident adapters.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.machine import Part
from benchmarks.serving.__main__ import DEFAULT_BASE
from benchmarks.serving.adapters import write_adapters
from protocol.leases import PackageIdentity
from sealed_weights import BaseSpec, CreatorIdentity, SealedPackage, seal_package
from serving.adapters.directory import DirectoryAdapterSource
from serving.adapters.source import AdapterSource
from serving.config import ServingConfig
from serving.core import AdapterRef, Request, SamplingParams
from serving.cores import available_cores
from serving.engine import Engine
from serving.platform.leases import LeaseTable
from serving.platform.link import HeldKey
from serving.platform.packages import PackageStore
from serving.platform.sealed import SealedAdapterSource
from serving.replica import Base, build_engine

COLD_BAR_MS, ITL_BAR = 30.0, 1.2
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
_ids = itertools.count()


class LocalKeys:
    """Replaces the platform's link for packages sealed here: leases are granted in memory, so that the figures are the
    replica's own."""

    def __init__(self) -> None:
        self.leases = LeaseTable()
        self.identity = CreatorIdentity.from_private_bytes(os.urandom(32))
        self.dek = os.urandom(32)
        self.creator, self.model = uuid.uuid4(), uuid.uuid4()
        self.packages: dict[str, SealedPackage] = {}
        self.base = ""  # fingerprint of the base that they were sealed for

    def seal(self, adapter: Path, folder: Path, base: BaseSpec) -> str:
        """Seal `adapter` into the package store at `folder`; returns its digest."""
        self.base = base.fingerprint.hex()
        package = seal_package(
            adapter,
            folder / "package",
            dek=self.dek,
            identity=self.identity,
            creator_id=self.creator,
            model_id=self.model,
            version=1,
            base_fingerprint=base.fingerprint,
        )
        os.replace(package.path, folder / package.digest)
        self.packages[package.digest] = package
        return package.digest

    def request_key(self, digest: str, purpose: str) -> HeldKey:
        """Grant a lease, like `PlatformLink.request_key`."""
        asked = self.leases.now()
        release = str(uuid.uuid4())
        self.leases.grant(release, digest, asked_at=asked)
        identity = PackageIdentity(self.creator, self.model, 1, self.base)
        size = self.packages[digest].size
        return HeldKey(release, digest, bytearray(self.dek), self.identity.public_bytes(), identity, size)


@contextmanager
def running(config: ServingConfig, base: Base, source: AdapterSource) -> Iterator[Engine]:
    """Run a warm engine."""
    engine = build_engine(config, base, source)
    engine.start()
    try:
        if not engine.ready.wait(120):
            raise RuntimeError("the engine did not become ready")
        yield engine
    finally:
        engine.stop()


async def first_token(engine: Engine, digest: str | None, prompt: int = 16) -> float:
    """Return the seconds from submission to the only token of a completion."""
    request = Request(f"r{next(_ids)}", "bench", "bench", AdapterRef(digest), tuple(range(10, 10 + prompt)), GREEDY, 1)
    began = time.perf_counter()
    async for _ in engine.submit(request):
        pass
    return time.perf_counter() - began


async def cold_starts(engine: Engine, digests: list[str], repetitions: int) -> dict[str, float]:
    """Return milliseconds on an idle replica; each adapter is evicted before it is requested.

    `cold_start`: TTFT less that of the same request on a resident adapter; the other keys: mean time of each stage.
    """
    for digest in digests:  # read every layout and touch all memory once
        await first_token(engine, digest)
    resident = statistics.median([await first_token(engine, digests[-1]) for _ in range(20)])
    adapters = engine.adapters
    before = adapters.seconds.snapshot()
    counters = adapters.counters
    loads, cold = counters.loads, counters.cold_seconds
    times = []
    for digest in digests * repetitions:
        await asyncio.wrap_future(engine.revoke(digest))
        await asyncio.wrap_future(engine.readmit(digest))
        times.append(await first_token(engine, digest) - resident)
    done = counters.loads - loads
    if done != len(times):
        raise RuntimeError(f"{done} loads for {len(times)} cold requests")
    levels = {k: 1e3 * (v - before[k]) / done for k, v in adapters.seconds.snapshot().items()}
    return {
        "cold_start_p50": 1e3 * statistics.median(times),
        "cold_start_p90": 1e3 * statistics.quantiles(times, n=10)[-1],
        "to_ready_mean": 1e3 * (counters.cold_seconds - cold) / done,
        **levels,
    }


async def inter_token(
    engine: Engine, streams: list[str], side: Callable[[], str], seconds: float, rate: float
) -> tuple[list[float], int]:
    """Return the gaps between tokens of one running completion per adapter in `streams`, while one-token requests for
    the adapters that `side` names arrive `rate` times per second; and how many of those requests were answered."""
    gaps: list[float] = []
    answered = 0
    end = time.perf_counter() + seconds

    async def stream(digest: str) -> None:
        while time.perf_counter() < end:
            request = Request(f"r{next(_ids)}", "bench", "bench", AdapterRef(digest), tuple(range(20, 84)), GREEDY, 256)
            last = 0.0
            async for _ in engine.submit(request):
                now = time.perf_counter()
                if last:
                    gaps.append(now - last)
                last = now
                if now > end:
                    engine.cancel(request.request_id)

    async def visits() -> None:
        nonlocal answered
        pending: set[asyncio.Task[float]] = set()
        due = time.perf_counter()
        while (due := due + 1 / rate) < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(first_token(engine, side(), prompt=4))
            pending.add(task)
            task.add_done_callback(pending.discard)
        if pending:
            answered -= len(pending)
            await asyncio.wait(pending)

    begun = engine.stats.finished
    await asyncio.gather(visits(), *(stream(digest) for digest in streams))
    return gaps, answered + engine.stats.finished - begun


async def storm(engine: Engine, digests: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Alternate phases of requests to resident and to cold adapters; returns ITL figures of each kind."""
    streams = digests[:8]
    resident = itertools.cycle(digests[8:12])
    cold = itertools.cycle(digests[12:])
    for digest in digests[:12]:
        await first_token(engine, digest)
    gaps: dict[str, list[float]] = {"resident": [], "cold": []}
    loads = 0
    for _ in range(options.rounds):
        for kind, side in (("resident", resident), ("cold", cold)):
            before = engine.adapters.loads
            found, _ = await inter_token(engine, streams, lambda side=side: next(side), options.phase, options.rate)
            gaps[kind] += found
            if kind == "cold":
                loads += engine.adapters.loads - before
    p50, p99 = ({k: 1e3 * _quantile(v, q) for k, v in gaps.items()} for q in (0.5, 0.99))
    return {
        "itl_p50_ms": p50,
        "itl_p99_ms": p99,
        "p99_ratio": p99["cold"] / p99["resident"],
        "loads_per_second": loads / (options.rounds * options.phase),
        "gaps": {k: len(v) for k, v in gaps.items()},
    }


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def shown(starts: Mapping[str, Mapping[str, float]], beside: Mapping[str, Any]) -> list[Part]:
    """Return what a reader is shown of cold starts and of the requests beside loads."""
    levels = list(starts["plain"])
    rows = [[kind, *(f"{each[level]:.1f}" for level in levels)] for kind, each in starts.items()]
    p50, p99 = beside["itl_p50_ms"], beside["itl_p99_ms"]
    gaps = [[kind, f"{p50[kind]:.1f}", f"{p99[kind]:.1f}"] for kind in p50]
    return [
        machine.table(["ms per load", *levels], rows),
        machine.table(["ITL beside requests for adapters that are", "p50 ms", "p99 ms"], gaps),
        f"p99 ratio {beside['p99_ratio']:.2f} at {beside['loads_per_second']:.1f} loads per second.",
    ]


def main(argv: list[str] | None = None) -> int:
    """Return 0 when both bars hold, 1 when one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sealed", description=__doc__)
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/intarsia-benchmarks")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--rate", type=float, default=10.0, help="requests to other adapters per second")
    parser.add_argument("--phase", type=float, default=3.0, help="seconds per phase")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / machine.cpu_kind(), help="folder of the results")
    options = parser.parse_args(argv)
    folder = options.work / f"adapters-{options.seed}"
    write_adapters(options.base, folder, options.seed)
    base = Base.from_dir(options.base)
    names = sorted(p.name for p in folder.iterdir() if _rank(p) == 16)
    about = machine.describe()
    starts: dict[str, dict[str, float]] = {}

    def config(slots: int) -> ServingConfig:
        return ServingConfig(
            model=options.base,
            adapters=folder,
            dtype=options.dtype,
            threads=options.threads,
            adapter_slots=slots,
            adapter_memory_mb=64 * slots,
            prefix_caching=False,
            kv_cache_mb=256,
        )

    with tempfile.TemporaryDirectory(dir=options.work) as sealed_folder:
        plain = DirectoryAdapterSource(folder, base.spec)
        keys = LocalKeys()
        digests = {"plain": [str(plain.resolve(name)) for name in names]}
        digests["sealed"] = [keys.seal(folder / name, Path(sealed_folder), base.spec) for name in names]
        store = PackageStore(Path(sealed_folder), downloads=None)  # type: ignore[arg-type]  # every package is in the store
        sources = {"plain": plain, "sealed": SealedAdapterSource(keys, store, base.spec)}  # type: ignore[arg-type]
        for kind, source in sources.items():
            with running(config(4), base, source) as engine:
                starts[kind] = asyncio.run(cold_starts(engine, digests[kind], options.repetitions))
            print(kind, " ".join(f"{k} {v:.2f}" for k, v in starts[kind].items()), "ms", flush=True)
    every = sorted(p.name for p in folder.iterdir() if _rank(p))
    all_digests = [str(plain.resolve(name)) for name in every]
    with running(config(16), base, plain) as engine:
        found = asyncio.run(storm(engine, all_digests, options))
    print("storm", json.dumps(found, default=lambda v: round(v, 3)))
    machine.write_suite(options.out, "sealed", {"machine": about}, shown(starts, found))
    worst = max(each["cold_start_p50"] for each in starts.values())
    ratio = found["p99_ratio"]
    held = worst <= COLD_BAR_MS and ratio <= ITL_BAR
    print(f"cold start p50 {worst:.1f} ms (bar {COLD_BAR_MS:g}), inter-token p99 x{ratio:.2f} (bar {ITL_BAR:g})")
    return 0 if held else 1


def _rank(folder: Path) -> int:
    """Return the rank of an adapter folder, 0 for other folders."""
    config = folder / "adapter_config.json"
    return int(json.loads(config.read_text())["r"]) if config.is_file() else 0


if __name__ == "__main__":
    sys.exit(main())
