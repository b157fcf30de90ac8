"""The sample models called as the README prints it, the message alone: right and valid answers of their held-out rows.

    python -m benchmarks.contracts [--base FOLDER]

Starts one replica on plain folders, asks each sample all rows of its task, and prints for each how many answers are
right and how many follow the schema of its contract. The counts depend on the weights alone, not on the machine's load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving.__main__ import DEFAULT_BASE
from examples.score import is_right, read_heldout

ROOT = Path(__file__).resolve().parents[1]
ADAPTERS = ROOT / "examples" / "adapters"
TASKS = ("finance", "health", "telecom")
# The contract must reach this many of 72 rows each (the same text sent by hand reaches it).
LEAST_RIGHT = {"finance": 66, "health": 69, "telecom": 59}
START_SECONDS = 300


@dataclass(frozen=True)
class Score:
    """Counts of one task.

    by_hand: whether the prompt was as long as the same text sent by hand
    surest, surest_right: the four fifths of the rows whose answers have the highest confidence, and the right ones
    """

    rows: int
    right: int
    valid: int
    by_hand: bool
    surest: int
    surest_right: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE, help="Hugging Face folder of the base model")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with replica(arguments.base, arguments.threads) as url:
        scores = {task: asyncio.run(measure(url, task)) for task in TASKS}
    print(f"{'task':<10}{'rows':>6}{'right':>7}{'valid':>7}{'surest':>8}{'right':>7}  prompt as by hand")
    for task, score in scores.items():
        surest = f"{score.surest:>8}{score.surest_right:>7}"
        by_hand = "yes" if score.by_hand else "no"
        print(f"{task:<10}{score.rows:>6}{score.right:>7}{score.valid:>7}{surest}  {by_hand}")
    reached = all(reaches(task, score) for task, score in scores.items())
    print("every sample reaches what its instructions reach by hand" if reached else "a sample falls short")
    return 0 if reached else 1


def reaches(task: str, score: Score) -> bool:
    """Return whether a task has as many right answers as it must have, and valid ones alone."""
    return score.right >= LEAST_RIGHT[task] and score.valid == score.rows and score.by_hand


@contextlib.contextmanager
def replica(base: Path, threads: int, *more: str) -> Iterator[str]:
    """Serve the sample adapters on a free port and yield the URL. more: further flags of the replica"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--insecure", "--model", str(base), "--adapters", str(ADAPTERS), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "serving", *flags, "--threads", str(threads), *more], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the replica did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


async def measure(url: str, task: str) -> Score:
    """Ask all rows of a task at once."""
    rows = read_heldout(task)
    schema = json.loads((ADAPTERS / task / "contract.json").read_text())["output"]["schema"]
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def ask(messages: list[dict[str, str]]) -> dict[str, Any]:
            answer = await client.post(
                "/v1/chat/completions", json={"model": task, "messages": messages, "confidence": True}
            )
            answer.raise_for_status()
            return answer.json()  # type: ignore[no-any-return]

        answers = await asyncio.gather(*(ask(row["messages"][-1:]) for row in rows))
        by_hand = await ask(rows[0]["messages"])
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    right = [is_right(text, row["expected"]) for text, row in zip(texts, rows, strict=True)]
    sure = sorted(range(len(rows)), key=lambda place: -answers[place]["choices"][0]["confidence"])[: len(rows) * 4 // 5]
    return Score(
        rows=len(rows),
        right=sum(right),
        surest=len(sure),
        surest_right=sum(right[place] for place in sure),
        valid=sum(follows(text, schema) for text in texts),
        by_hand=by_hand["usage"]["prompt_tokens"] == answers[0]["usage"]["prompt_tokens"],
    )


def follows(text: str, schema: dict[str, Any]) -> bool:
    """Return whether an answer is JSON with exactly the schema's properties, each of the listed values."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    allowed = {name: one["enum"] for name, one in schema["properties"].items()}
    return isinstance(value, dict) and value.keys() == allowed.keys() and all(value[k] in allowed[k] for k in allowed)


if __name__ == "__main__":
    sys.exit(main())
