"""Throughput with 64 of 2,000 registered adapters resident, beside a replica that holds all requested ones.

Both replicas get the same stream of requests, with adapters drawn by Zipf's law (exponent 1) from all registered ones,
after the same number of requests to reach a steady state. The price of a cold start is the TTFT of an adapter that is
not resident less the TTFT of one that is, on an otherwise idle replica.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks import machine
from benchmarks.serving.__main__ import DEFAULT_BASE, model_tokenizer
from benchmarks.serving.adapters import write_adapters
from benchmarks.serving.replica import Replica
from benchmarks.serving.workload import ADAPTERS, Item, adapter_names, prompts
from serving.cores import available_cores

COLD, WARM = "64 resident", "all resident"


def main(argv: list[str] | None = None) -> int:
    """Return 0 when both bars hold, 1 when one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.residency", description=__doc__)
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/intarsia-benchmarks")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / machine.cpu_kind(), help="folder of the results")
    parser.add_argument("--registered", type=int, default=2000)
    parser.add_argument("--resident", type=int, default=64)
    parser.add_argument("--requests", type=int, default=96, help="requests per repetition")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--seed", type=int, default=20261121)
    options = parser.parse_args(argv)
    adapters = options.work / f"adapters-{options.seed}"
    registry = options.work / f"registry-{options.seed}-{options.registered}"
    options.work.mkdir(parents=True, exist_ok=True)
    write_adapters(options.base, adapters, options.seed)
    register(adapters, registry, options.registered)
    streams = _streams(options)
    asked = {item.adapter for stream in streams for item in stream}
    common = ("--dtype", "bfloat16", "--threads", str(options.threads), "--no-prefix-caching")
    results: dict[str, list[float]] = {COLD: [], WARM: []}
    with ExitStack() as stack:
        engines = {}
        for name, slots in ((WARM, len(asked)), (COLD, options.resident)):
            # An adapter of rank 32 takes two pages of about 10 MB.
            flags = ("--adapter-slots", str(slots), "--adapter-memory-mb", str(20 * slots))
            engines[name] = Replica(
                name, options.base, registry, options.work / f"{name}.log".replace(" ", "-"), *common, *flags
            )
            stack.callback(engines[name].close)
        engines[WARM].warm_up([Item(name, [1] * 16) for name in sorted(filter(None, asked))])
        for engine in engines.values():
            engine.run(streams[0], options.concurrency)
        for stream in streams[1:]:
            for name, engine in engines.items():
                figures = engine.run(stream, options.concurrency)
                results[name].append(figures["output_tokens_per_s"])
                print(f"{name:14} {figures}", flush=True)
        cold, warm = _cold_starts(engines[COLD], asked, options.registered)
    share = statistics.median(results[COLD]) / statistics.median(results[WARM])
    extra = (statistics.median(cold) - statistics.median(warm)) * 1e3
    print(
        f"throughput with {options.resident} of {options.registered} resident: {share:.3f} of all resident (bar 0.80)"
    )
    print(f"cold start from disk, rank 16, p50: {extra:.1f} ms on top of a resident adapter's first token (bar 30)")
    rates = [[name, f"{statistics.median(measured):.1f}"] for name, measured in results.items()]
    parts = [
        machine.table([f"{options.registered} adapters registered", "tokens/s"], rates),
        f"Share {share:.2f}; cold start p50 {extra:.1f} ms.",
    ]
    machine.write_suite(options.out, "residency", {"machine": machine.describe()}, parts)
    return int(share < 0.8 or extra > 30)


def register(adapters: Path, registry: Path, count: int) -> None:
    """Register `count` different adapters: hard links to the few tensor files, each with its own scale."""
    sources = adapter_names()
    for index in range(count):
        source, target = adapters / sources[index % len(sources)], registry / f"r{index:04d}"
        if (target / "adapter_config.json").is_file():
            continue
        target.mkdir(parents=True, exist_ok=True)
        settings = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
        settings["lora_alpha"] *= 1 + index / (10 * count)
        if not (target / "adapter_model.safetensors").exists():
            os.link(source / "adapter_model.safetensors", target / "adapter_model.safetensors")
        (target / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _streams(options: argparse.Namespace) -> list[list[Item]]:
    """Return one stream to reach a steady state, then one per repetition."""
    rng = random.Random(options.seed)
    order = list(range(options.registered))
    rng.shuffle(order)
    weights = [1 / (place + 1) for place in range(options.registered)]
    total = options.requests * (options.repetitions + 1)
    texts = prompts(model_tokenizer(options.base), min(total, 128), options.seed)
    chosen = rng.choices(order, weights, k=total)
    items = [Item(f"r{index:04d}", texts[place % len(texts)]) for place, index in enumerate(chosen)]
    return [items[first : first + options.requests] for first in range(0, total, options.requests)]


def _cold_starts(engine: Replica, asked: set[str | None], registered: int) -> tuple[list[float], list[float]]:
    """Return the TTFT in seconds of adapters of rank 16 that were never requested, cold and then at once again.

    Each is repeated at once, and not all of them at the end, because new adapters are evicted first.
    """
    fresh = [f"r{index:04d}" for index in range(registered) if index % ADAPTERS % 3 == 1]
    fresh = [name for name in fresh if name not in asked][:24]
    seconds = engine.first_token_seconds([Item(name, [1] * 32, 1) for name in fresh for _ in range(2)])
    return seconds[::2], seconds[1::2]


if __name__ == "__main__":
    sys.exit(main())
