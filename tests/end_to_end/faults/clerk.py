"""The clerk of a fault run and the record of its errands: corrections and payouts that were asked for, and answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from devstack.state import REPOSITORY
from tests.end_to_end.platform import Platform

READY_SECONDS = 120.0
DONE_SECONDS = 300.0


@dataclass
class Errands:
    """The requests of the clerk, by id, and the answers that it got: `done`, or the code of a refusal."""

    corrections: dict[str, tuple[str, int]] = field(default_factory=dict)  # prediction and nano-dollars
    payouts: set[str] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)

    def note(self, line: dict[str, Any]) -> None:
        """Take one line of the clerk."""
        if line.get("ask") == "correction":
            self.corrections[line["id"]] = (line["prediction"], line["amount"])
        elif line.get("ask") == "payout":
            self.payouts.add(line["id"])
        elif "answer" in line:
            self.answers[line["id"]] = line["answer"]


class Clerk:
    """The process, from its first errand to its last answer."""

    def __init__(self, platform: Platform, *, seed: int) -> None:
        self._environment: dict[str, str] = dict(platform.info["environment"])
        self._seed = seed
        self.errands = Errands()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()

    async def start(self) -> None:
        """Begin; returns when the maker of the listings has an account at Stripe. Earnings mature at once."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.end_to_end.faults.clerk_process", str(self._seed)],
            cwd=REPOSITORY,
            env={**self._environment, "PAYOUT_RESERVE_DAYS": "0", "PAYOUT_MINIMUM_CENTS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not await asyncio.to_thread(self._ready.wait, READY_SECONDS):
            raise TimeoutError("the clerk did not begin")

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            self.errands.note(line)
            if "ready" in line:
                self._ready.set()

    async def finish(self) -> None:
        """Let the clerk end with the answer that it waits for. Raises TimeoutExpired, or if it failed."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and self._reader is not None
        process.stdin.close()
        try:
            status = await asyncio.to_thread(process.wait, DONE_SECONDS)
        finally:
            process.kill()
        await asyncio.to_thread(self._reader.join, 10)
        assert status == 0, f"the clerk ended with status {status}"

    def transfers(self) -> list[dict[str, Any]]:
        """Return what Stripe says it has transferred to makers."""
        url = f"{self._environment['STRIPE_API_BASE']}/v1/transfers?limit=100"
        headers = {"authorization": f"Bearer {self._environment['STRIPE_API_KEY']}"}
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            listed: list[dict[str, Any]] = json.load(response)["data"]
        return listed
