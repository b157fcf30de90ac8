"""vLLM's CPU build, in process (no HTTP), continuous batching at a held concurrency. Runs in its own environment."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.serving.metrics import Record
from benchmarks.serving.worker import Cell, serve
from benchmarks.serving.workload import Item, adapter_names

CELL_SECONDS = 600


def with_recommended_environment(threads: int) -> None:
    """Restart this program with the environment that vLLM recommends for CPUs; LD_PRELOAD needs a new process."""
    if "libiomp5" in os.environ.get("LD_PRELOAD", ""):
        return
    prefix = Path(sys.executable).parent.parent
    preload = [prefix / "lib/libiomp5.so", Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")]
    settings = {
        "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # measured: faster on two cores than three processes
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}",
    }
    if "libiomp5" in settings["LD_PRELOAD"]:
        os.execve(sys.executable, sys.orig_argv, os.environ | settings)


def start(base: Path, adapters: Path | None, dtype: str) -> Cell:
    """Load the model: compiled without adapters, eager with them, as vLLM's CPU build requires."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind

    lora: dict[str, Any] = {}
    if adapters is not None:
        lora = {"enable_lora": True, "max_loras": 32, "max_cpu_loras": 32, "max_lora_rank": 32}
    llm = LLM(
        model=str(base), dtype=dtype, max_model_len=1024, max_num_seqs=32, enable_prefix_caching=False, seed=0, **lora
    )
    engine = llm.llm_engine
    ids = itertools.count()
    requests = {}
    if adapters is not None:
        requests = {
            name: LoRARequest(name, number, str(adapters / name))
            for number, name in enumerate(adapter_names(), start=1)
        }

    def submit(item: Item) -> str:
        name = str(next(ids))
        settings = SamplingParams(
            temperature=0.0,
            max_tokens=item.max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE,
        )
        engine.add_request(
            name,
            {"prompt_token_ids": item.prompt_ids},
            settings,
            lora_request=requests[item.adapter] if item.adapter else None,
        )
        return name

    def run(items: list[Item], concurrency: int) -> list[Record]:
        todo = list(reversed(items))
        live: dict[str, Record] = {}
        done: list[Record] = []
        began = time.perf_counter()
        while todo or live:
            while todo and len(live) < concurrency:
                item = todo.pop()
                live[submit(item)] = Record(time.perf_counter(), len(item.prompt_ids))
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                name = output.request_id if output.request_id in live else output.request_id.split("-")[0]
                record = live[name]
                record.tokens += [now] * (len(output.outputs[0].token_ids) - len(record.tokens))
                if output.finished:
                    done.append(live.pop(name))
            if now - began > CELL_SECONDS:
                engine.abort_request(list(live))
                for record in live.values():
                    record.error = "the cell's time limit passed"
                return [*done, *live.values()]
        return done

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--adapters", type=Path)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    with_recommended_environment(given.threads)
    serve(lambda: start(given.base, given.adapters, given.dtype))
