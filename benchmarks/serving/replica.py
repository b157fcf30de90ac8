"""Engines as clients see them: a server of completions, and streaming clients that each wait for their answer."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.serving.client import Client
from benchmarks.serving.metrics import PeakMemory, Record, summarise
from benchmarks.serving.workload import Item

START_SECONDS, CELL_SECONDS = 300, 600
BASE_NAME = "base"  # the base model's name on a replica of plain folders


class Endpoint:
    """A server of completions at an address, whoever started it: one that takes token ids, and answers with them where
    `return_token_ids` asks for it, as ours and vLLM's do.
    """

    ready_seconds = 0.0  # nobody waited for it here

    def __init__(self, name: str, url: str, base_model: str) -> None:
        self.name, self.url, self.base_model = name, url.rstrip("/").removesuffix("/v1"), base_model

    def warm_up(self, items: list[Item]) -> None:
        """Generate a few tokens with each adapter, so that loads are not part of the figures."""
        short = [Item(item.adapter, item.prompt_ids[:16], 4) for item in items]
        _run(self._closed_loop(short, 4))

    def run(self, items: list[Item], concurrency: int) -> dict[str, Any]:
        """Return the figures of one cell."""
        began = time.perf_counter()
        records = _run(self._closed_loop(items, concurrency))
        return summarise(records, time.perf_counter() - began)

    def first_token_seconds(self, items: list[Item]) -> list[float]:
        """Return each item's TTFT in seconds, one request at a time. Raises RuntimeError when one fails."""
        records = _run(self._closed_loop(items, 1))
        if any(record.error for record in records):
            raise RuntimeError(next(record.error for record in records if record.error))
        return [record.tokens[0] - record.start for record in records]

    async def _closed_loop(self, items: list[Item], concurrency: int) -> list[Record]:
        todo = list(reversed(items))
        records = list[Record]()

        async def client() -> None:
            connection = await Client.connect(self.url)
            try:
                while todo:
                    records.append(await self._ask(connection, todo.pop()))
            finally:
                connection.close()

        await asyncio.gather(*(client() for _ in range(concurrency)))
        return records

    async def _ask(self, connection: Client, item: Item) -> Record:
        body = {
            "model": item.adapter or self.base_model,
            "prompt": item.prompt_ids,
            "max_tokens": item.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        record = Record(time.perf_counter(), len(item.prompt_ids))
        try:
            async with asyncio.timeout(CELL_SECONDS):
                await connection.ask("/v1/completions", body, record)
        except TimeoutError:
            connection.close()
            record.error = f"no answer within {CELL_SECONDS} s"
        if record.error is None and len(record.tokens) != item.max_tokens:
            record.error = f"got {len(record.tokens)} tokens instead of {item.max_tokens}"
        return record


class Replica(Endpoint):
    """One server process of ours. `run` measures a cell; `close` ends the process."""

    def __init__(self, name: str, base: Path, adapters: Path, log: Path, *flags: str) -> None:
        """Start the process and wait until it is ready. Raises RuntimeError when it is not ready in time."""
        super().__init__(name, f"http://127.0.0.1:{_free_port()}", BASE_NAME)
        self._log = log.open("wb")
        command = [
            sys.executable,
            "-m",
            "serving",
            "--model",
            str(base),
            "--adapters",
            str(adapters),
            "--port",
            self.url.rpartition(":")[2],
            "--insecure",
            *flags,
        ]
        began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        while not self._is_ready():
            if self.process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                self.process.kill()
                raise RuntimeError(f"{name} did not become ready; see {log}")
            time.sleep(0.02)
        self.ready_seconds = time.perf_counter() - began

    def run(self, items: list[Item], concurrency: int) -> dict[str, Any]:
        """Return the figures of one cell, with the memory that the process took."""
        with PeakMemory(self.process.pid) as memory:
            figures = super().run(items, concurrency)
        return figures | {"peak_memory_mb": round(memory.peak)}

    def close(self) -> None:
        """End the process with SIGTERM, and with SIGKILL after 30 s."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _run(records: Coroutine[Any, Any, list[Record]]) -> list[Record]:
    """Run the clients in uvloop, which takes the least time on the cores that the replica shares."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(records)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
