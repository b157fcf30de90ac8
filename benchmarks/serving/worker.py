"""A peer engine in a process of its own, which reads one JSON line per cell and answers with one.

This module holds both ends. It imports only the standard library, because the process may run in another environment.
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

# Runs a cell: takes its items and the concurrency, returns one record per item.
Cell = Callable[[list[Item], int], list[Record]]


def serve(start: Callable[[], Cell]) -> None:
    """Start the engine, then answer cells until standard input ends (the worker's side)."""
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
    """The benchmark's side of a peer; `ask` measures a cell as `Replica.run` does."""

    def __init__(self, name: str, python: Path | str, module: str, log: Path, *arguments: str) -> None:
        """Start the process and wait until it is ready. Raises RuntimeError when it ends instead."""
        self.name = name
        self._log = log.open("wb")
        self._path = log
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        self.process = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        self.ready_seconds = float(self._answer()["ready_seconds"])

    def ask(self, workload: Path, scenario: str, concurrency: int, scale: float, *, warm_up: bool) -> dict[str, Any]:
        """Return the figures of one cell. Raises RuntimeError when the process has ended."""
        assert self.process.stdin is not None
        question = {
            "workload": str(workload),
            "scenario": scenario,
            "concurrency": concurrency,
            "scale": scale,
            "warm_up": warm_up,
        }
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
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
