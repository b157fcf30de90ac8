"""Times of single steps on a CPU, versions of the code taking turns: what a change of the kernels costs or brings.

    python -m benchmarks.serving_steps BEFORE AFTER ... [--dtype bfloat16] [--only 16] [--rounds 12] [--out FILE]

A version is a git revision, or a folder that holds a checkout. Each runs in a process of its own, with SmolLM2-135M's
weights and 32 adapters of ranks 8, 16 and 32, and repeats one and the same step. The versions take turns in pieces of
`--seconds`, forwards and backwards, so that what the machine does meanwhile meets all of them. A step is a decode of 1,
16 or 32 sequences with 160 tokens of context, a prompt of 160 tokens, or 15 decodes beside a prompt, each without
adapters and with an adapter of its own for every sequence. A turn counts as the time that a fifth
of its steps stay below. The table shows the median over the turns, and of the ratio to the first version its median and
quartiles.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_BASE = ROOT / ".intarsia" / "base" / "smollm2-135m-instruct"
CONTEXT, SLOTS, RANKS = 160, 32, (8, 16, 32)
# Sequences that decode, and tokens of a prompt beside them.
STEPS = {"1": (1, 0), "16": (16, 0), "32": (32, 0), "prompt": (0, 160), "15 + prompt": (15, 160)}
WARM_UP_STEPS = 3


class Worker:
    """One version of the code in a process of its own, which runs steps when it is asked to."""

    def __init__(self, checkout: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--worker", "--base", str(options.base)]
        command += ["--dtype", options.dtype, "--adapter-dtype", options.adapter_dtype]
        command += ["--threads", str(options.threads)]
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        self.process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ready(self) -> str:
        """Wait until it is; return the name of its instruction set. Raises RuntimeError where it has no kernels."""
        kernels = self._answer()
        if kernels is None:
            raise RuntimeError("a version of the code could not build its kernels; its message is above")
        return str(kernels)

    def times(self, step: str, adapters: bool, seconds: float) -> list[float]:
        """Seconds of each step. Raises RuntimeError when the process has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([step, adapters, seconds]) + "\n")
        self.process.stdin.flush()
        return [float(each) for each in self._answer()]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a version of the code ended; its message is above")
        return json.loads(line)


def work(options: argparse.Namespace) -> None:
    """Answer requests for times on standard input until it ends."""
    import torch

    from serving.kernels.library import load_library

    torch.set_grad_enabled(False)
    torch.set_num_threads(options.threads)
    steps = _steps(options)
    library = load_library()
    print(json.dumps(None if library is None else library.instruction_set), flush=True)
    for line in sys.stdin:
        step, adapters, seconds = json.loads(line)
        run = steps[step, adapters]
        for _ in range(WARM_UP_STEPS):
            run()
        times, end = [], time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            run()
            times.append(time.perf_counter() - began)
        print(json.dumps(times), flush=True)


def _steps(options: argparse.Namespace) -> dict[tuple[str, bool], Callable[[], object]]:
    """Each kind of step as a call that may be repeated."""
    import torch

    from lora_kernels import AdapterPool
    from serving.models.config import ModelConfig
    from serving.models.llama import pool_spec
    from serving.runner import RunnerSettings, choose_precision, choose_runner

    device = torch.device("cpu")
    model = ModelConfig.from_dir(options.base)
    precision = choose_precision(options.dtype, device, "auto", options.adapter_dtype)
    blocks = 2 * SLOTS * (CONTEXT // 16 + 2)

    class Resident:
        """As much of the adapter manager as a runner asks for: "3" is slot 3."""

        pool = AdapterPool(pool_spec(model), 2 * SLOTS, SLOTS, precision.adapters)

        def slot(self, digest: str | None) -> int:
            return -1 if digest is None else int(digest)

    adapters = Resident()
    loads = [_random_adapter(model, rank) for rank in RANKS]
    for slot in range(SLOTS):
        adapters.pool.load(slot, loads[slot % len(RANKS)])
    runner = choose_runner(
        RunnerSettings(
            folder=options.base,
            model=model,
            device=device,
            precision=precision,
            num_blocks=blocks,
            block_size=16,
            max_len=2 * CONTEXT,
            max_rows=512,
            max_sequences=64,
            threads=options.threads,
        ),
        adapters,  # type: ignore[arg-type]
    )
    runner.kv.data.zero_()  # pages that nobody wrote would all be the same memory
    return {
        (name, with_adapters): _repeated(runner, blocks, decodes, prompt, with_adapters)
        for name, (decodes, prompt) in STEPS.items()
        for with_adapters in (False, True)
    }


def _repeated(runner: Any, blocks: int, decodes: int, prompt: int, with_adapters: bool) -> Callable[[], object]:
    from serving.core import AdapterRef, Request, SamplingParams, Sequence
    from serving.steps import Chunk, StepPlan

    free = list(range(1, blocks))
    random.Random(1).shuffle(free)

    def sequence(index: int, tokens: int) -> Sequence:
        ref = AdapterRef(str(index) if with_adapters else None)
        greedy = SamplingParams(temperature=0, ignore_eos=True)
        request = Request("id", "tenant", "scope", ref, tuple(range(tokens)), greedy, 1)
        out = Sequence(request, 0.0, list(range(tokens)), None, random.Random(0))  # type: ignore[arg-type]
        out.blocks.extend(free.pop() for _ in range(tokens // 16 + 1))
        return out

    plan = StepPlan()
    for index in range(decodes):
        plan.chunks.append(Chunk(sequence(index, CONTEXT + 1), CONTEXT, 1))
    if prompt:
        plan.chunks.append(Chunk(sequence(SLOTS - 1, prompt), 0, prompt))
    return lambda: runner.execute(plan)


def _random_adapter(model: Any, rank: int) -> dict[Any, Any]:
    import torch

    from lora_kernels import LoraPair
    from serving.models.llama import pool_spec

    generator = torch.Generator().manual_seed(rank)
    return {
        (layer, site.name, index): LoraPair(
            torch.randn(rank, site.in_features, generator=generator) * site.in_features**-0.5,
            torch.randn(width, rank, generator=generator) * 0.01,
            1.0,
        )
        for site in pool_spec(model).sites
        for layer in range(model.num_layers)
        for index, width in enumerate(site.slices)
    }


def _checkout(version: str, stack: ExitStack) -> Path:
    if Path(version).is_dir():
        return Path(version).resolve()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="intarsia-steps-")))
    archive = subprocess.run(["git", "archive", version], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def compare(workers: list[Worker], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry for each kind of step and version: its median in ms, and the quartiles of its ratio to the first."""
    figures = []
    for step in options.only or STEPS:
        for adapters in (False, True):
            rounds = []
            for turn in range(options.rounds):
                order = workers if turn % 2 == 0 else workers[::-1]
                rounds.append({each: _typical(each.times(step, adapters, options.seconds)) for each in order})
            for version, worker in zip(options.versions, workers, strict=True):
                low, middle, high = statistics.quantiles([found[worker] / found[workers[0]] for found in rounds], n=4)
                figure = {
                    "version": version,
                    "step": step,
                    "adapters": adapters,
                    "ms": 1e3 * statistics.median(found[worker] for found in rounds),
                    "ratio": middle,
                    "ratio_quartiles": [low, high],
                }
                print(_line(figure), flush=True)
                figures.append(figure)
    return figures


def _typical(times: list[float]) -> float:
    """The time that a fifth of the steps stay below: other processes only ever add to a step."""
    return sorted(times)[len(times) // 5]


def _line(figure: dict[str, Any]) -> str:
    low, high = figure["ratio_quartiles"]
    name = f"{figure['step']}{', adapters' if figure['adapters'] else ''}"
    return f"{name:22} {figure['version']:20} {figure['ms']:8.2f} ms   x{figure['ratio']:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--adapter-dtype", default="auto")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", choices=tuple(STEPS), help="kinds of steps; default: all")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    parser.add_argument("--out", type=Path, help="where the figures go as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    if len(options.versions) < 2:
        parser.error("name two versions at least")
    from benchmarks import machine

    with ExitStack() as stack:
        workers = []
        for version in options.versions:
            worker = Worker(_checkout(version, stack), options)
            stack.callback(worker.close)
            workers.append(worker)
        kernels = [worker.ready() for worker in workers]
        print("ready", flush=True)
        figures = compare(workers, options)
    if options.out is not None:
        about = {"machine": machine.describe(), "kernels": kernels[0], "dtype": options.dtype}
        options.out.write_text(json.dumps(about | {"figures": figures}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
