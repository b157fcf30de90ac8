"""The gain of a disk below the KV pool for the readers of many documents, and its cost to the others.

    python -m benchmarks.kv_tiers [--base FOLDER] [--disk FOLDER] [--rounds 3] [--traces N] [--out FOLDER]

Two replicas of one base model in this process, one with a disk, answer the same questions about 64 documents of 1,024
tokens in turns; their pools have room for 8. Two streams of other tenants run meanwhile. Then the file is searched for
KV, an adapter is revoked, and simulated traces are run through the real scheduler (with --traces alone: nothing else).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.contracts import ADAPTERS
from benchmarks.kv_tiers import privacy
from benchmarks.kv_tiers.report import report
from benchmarks.kv_tiers.traces import run_traces
from benchmarks.kv_tiers.traffic import Turn, ask, documents, turn, zipf
from benchmarks.serving.__main__ import DEFAULT_BASE
from serving.adapters.directory import DirectoryAdapterSource
from serving.config import ServingConfig
from serving.engine import Engine
from serving.replica import Base, build_engine

POOL_DOCUMENTS, BLOCKS_A_DOCUMENT, BLOCKS_OF_OTHERS = 8, 65, 32
SAMPLE = "finance"


@contextmanager
def replica(base: Base, source: DirectoryAdapterSource, disk: Path | None, documents: int) -> Iterator[Engine]:
    """Run an engine whose pool has room for eight documents and the others' streams."""
    model = base.config
    block = 2 * model.num_layers * model.num_kv_heads * model.head_dim * 16 * 2  # bfloat16
    mib = -(-(POOL_DOCUMENTS * BLOCKS_A_DOCUMENT + BLOCKS_OF_OTHERS) * block >> 20)
    level: dict[str, Any] = {} if disk is None else {"kv_disk": disk, "kv_disk_gb": documents * 70 * block / 1e9}
    config = ServingConfig(
        model=base.folder,
        adapters=ADAPTERS,
        device="cpu",
        dtype="bfloat16",
        kv_cache_mb=int(mib),
        adapter_memory_mb=64,
        elastic_memory=False,
        **level,
    )
    engine = build_engine(config, base, source)
    engine.start()
    engine.ready.wait(120)
    try:
        yield engine
    finally:
        engine.stop()


async def read(plain: Engine, tiered: Engine, count: int, rounds: int, draws: int) -> dict[str, Any]:
    """Ask both replicas the same questions, turn by turn."""
    texts, rng = documents(count, plain.vocab_size, 1), random.Random(1)
    for number in reversed(range(count)):  # the most popular last, as they would lie in a pool that has run for long
        await ask(tiered, number, texts[number], None, rng)
        if number < POOL_DOCUMENTS:
            await ask(plain, number, texts[number], None, rng)
    turns: dict[str, list[Turn]] = {"with": [], "without": []}
    for number in range(rounds):
        chosen = zipf(count, draws, number)
        for name in ("with", "without") if number % 2 else ("without", "with"):
            engine = tiered if name == "with" else plain
            turns[name].append(await turn(engine, texts, chosen, number))
    return summary(turns)


def summary(turns: dict[str, list[Turn]]) -> dict[str, Any]:
    answers = {name: [answer for one in some for answer in one.answers] for name, some in turns.items()}
    gaps = {name: sorted(gap for one in some for gap in one.gaps) for name, some in turns.items()}
    computed = statistics.median(answer.ttft for answer in answers["without"] if not answer.cached)
    restored = [answer.ttft for answer in answers["with"] if answer.restored]
    whole = statistics.median(answer.ttft for answer in answers["with"])
    tokens = {name: sum(answer.cached for answer in some) for name, some in answers.items()}
    return {
        "recomputed_ms": 1e3 * computed,
        "all": {"with_ms": 1e3 * whole, "ratio": whole / computed},
        "restored": {
            "with_ms": 1e3 * statistics.median(restored),
            "ratio": statistics.median(restored) / computed,
            "count": len(restored),
        },
        "all_without_ms": 1e3 * statistics.median(answer.ttft for answer in answers["without"]),
        "others_itl_p99_ms": {name: 1e3 * some[int(0.99 * len(some))] for name, some in gaps.items()},
        "others_itl_p50_ms": {name: 1e3 * statistics.median(some) for name, some in gaps.items()},
        "cached_share": {name: tokens[name] / (1040 * len(some)) for name, some in answers.items()},
    }


def measure(folder: Path, disk: Path, count: int, rounds: int, draws: int) -> dict[str, Any]:
    base = Base.from_dir(folder)
    source = DirectoryAdapterSource(ADAPTERS, base.spec)
    digest = source.resolve(SAMPLE)
    assert digest is not None
    with replica(base, source, disk, count) as tiered, replica(base, source, None, count) as plain:
        out: dict[str, Any] = {"reading": asyncio.run(read(plain, tiered, count, rounds, draws))}
        out["levels"] = {name: asdict(counts) for name, counts in tiered.planner.restores.tiers.counts().items()}
        out["privacy"] = asyncio.run(privacy.measure(tiered, digest))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE, help="Hugging Face folder of the base model")
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure")
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each replica")
    parser.add_argument("--draws", type=int, default=30, help="questions of a turn")
    parser.add_argument("--traces", type=int, help="run so many simulated traces, and measure nothing else")
    parser.add_argument("--out", type=Path, help="folder of the results")
    arguments = parser.parse_args()
    about = machine.describe()
    if arguments.traces is not None:
        suite, measured = "kv_tiers_traces", {"traces": run_traces(arguments.traces, os.cpu_count() or 1)}
    else:
        suite = "kv_tiers"
        measured = measure(arguments.base, arguments.disk, arguments.documents, arguments.rounds, arguments.draws)
    lines, fine = report(measured)
    print("\n".join(lines))
    folder = arguments.out or machine.RESULTS / machine.cpu_kind(about)
    print(machine.write_suite(folder, suite, {"machine": about, **measured}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
