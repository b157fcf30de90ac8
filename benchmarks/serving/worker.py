"""A peer engine in a process of its own: it reads one JSON line a cell and answers with one.

Both ends are here. The process may run in another virtual environment, so this module needs the standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.serving.metrics import PeakMemory, Record, summarise
from benchmarks.serving.workload import Item, read

ROOT = Path(__file__).parents[2]
ANSWER = "answer: "

# Runs a cell: its items and the concurrency in, records out.
Cell = Callable[[list[Item], int], list[Record]]


def serve(start: Callable[[], Cell]) -> None:
    """The worker's side: starts the engine, then answers cells until its input ends."""
    began = time.perf_counter()
    run = start()
    _say({"ready_seconds": time.perf_counter() - began})
    for line in sys.stdin:
        ask = json.loads(line)
        items = read(Path(ask["workload"]), ask["scenario"], ask["concurrency"], ask["scale"])
        if ask["warm_up"]:
            items = [Item(item.adapter, item.prompt_ids[:16], 4) for item in items]
        with PeakMemory(os.getpid()) as memory:
            began = time.perf_counter()
            records = run(items, ask["concurrency"])
            wall = time.perf_counter() - began
        _say(summarise(records, wall) | {"peak_memory_mb": round(memory.peak)})


class Worker:
    """The benchmark's side. `run` measures a cell as `Replica.run` does."""

    def __init__(self, name: str, python: Path | str, module: str, log: Path, *arguments: str) -> None:
        """Starts the process and waits until it is ready. Raises RuntimeError when it ends instead."""
        self.name = name
        self._log = log.open("wb")
        self._path = log
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        self.process = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment,
        )  # fmt: skip
        self.ready_seconds = float(self._answer()["ready_seconds"])

    def ask(self, workload: Path, scenario: str, concurrency: int, scale: float, *, warm_up: bool) -> dict[str, Any]:
        """Figures of one cell. Raises RuntimeError when the process has ended."""
        assert self.process.stdin is not None
        question = {
            "workload": str(workload), "scenario": scenario, "concurrency": concurrency, "scale": scale,
            "warm_up": warm_up,
        }  # fmt: skip
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                return answer
        raise RuntimeError(f"{self.name} ended; see {self._path}")


def _say(answer: dict[str, Any]) -> None:
    print(ANSWER + json.dumps(answer), flush=True)
