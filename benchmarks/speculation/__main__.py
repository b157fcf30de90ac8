"""Predictions per second of one replica with drafts and without, taking turns, and the tokens that a step yields.

    python -m benchmarks.speculation [--dtype bfloat16] [--rounds 3] [--out FOLDER]

Each sample model first answers its 72 held-out rows, as the platform asks them when a version is published. Then new
rows are asked, by 1, 4 and 16 clients in turn, with `speculation` and without, and those with it once more without: an
answer that differs ends the run. The ratio of a number of clients is the median over the pairs. Chats of the
bare base ask for texts that repeat parts of their prompt, which prompt lookup finds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks import machine
from benchmarks.contracts import replica
from benchmarks.serving.__main__ import DEFAULT_BASE
from benchmarks.speculation.report import report
from examples.data import TASKS, heldout_rows
from examples.score import read_heldout

CLIENTS = (1, 4, 16)
PER_CLIENT = {1: 24, 4: 12, 16: 6}
# Rows of each task; no row and no chat is asked in two rounds, or the second would find its own answer in the books.
NEW_ROWS = 336
NEW_SEED = 41

Messages = list[dict[str, str]]


@dataclass
class Turn:
    """The answers of one turn and what they took. tokens, accepted: of completions."""

    seconds: float = 0.0
    tokens: int = 0
    accepted: int = 0
    texts: dict[int, str] = field(default_factory=dict)

    @property
    def a_second(self) -> float:
        return len(self.texts) / self.seconds

    @property
    def tokens_a_step(self) -> float:
        return self.tokens / (self.tokens - self.accepted)


async def turn(
    client: httpx.AsyncClient, asked: Sequence[tuple[str, Messages]], clients: int, *, drafts: bool, most: int | None
) -> Turn:
    """Ask all of `asked`, `clients` at a time."""
    out, left = Turn(), list(enumerate(asked))

    async def work() -> None:
        while left:
            place, (model, messages) = left.pop()
            body: dict[str, Any] = {"model": model, "messages": messages, "temperature": 0, "speculation": drafts}
            answer = await client.post(
                "/v1/chat/completions", json=body if most is None else body | {"max_tokens": most}
            )
            answer.raise_for_status()
            said = answer.json()
            out.tokens += said["usage"]["completion_tokens"]
            out.accepted += said["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
            out.texts[place] = said["choices"][0]["message"]["content"]

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    out.seconds = time.perf_counter() - began
    return out


def new_rows(task: str) -> list[Messages]:
    """Return rows that are neither the held-out ones nor the training's."""
    known = {row["messages"][-1]["content"] for row in read_heldout(task)}
    rows = [row.text for row in heldout_rows(TASKS[task], NEW_ROWS + len(known), NEW_SEED)]
    return [[{"role": "user", "content": text}] for text in rows if text not in known][:NEW_ROWS]


def chats(count: int) -> list[Messages]:
    """Return different chats whose answers repeat what they were given."""
    texts = [row["messages"][-1]["content"] for task in TASKS for row in read_heldout(task)]
    orders = (
        "Repeat this list, one item a line:\n- {0}\n- {1}\n- {2}",
        "Correct the spelling of this text and change nothing else:\n{0} {1} {2}",
        "Write these three messages as a numbered list, word for word.\n{0}\n{1}\n{2}",
    )
    rng = random.Random(NEW_SEED)
    return [[{"role": "user", "content": orders[at % 3].format(*rng.sample(texts, 3))}] for at in range(count)]


async def pairs(
    client: httpx.AsyncClient, asked: Sequence[tuple[str, Messages]], rounds: int, *, most: int | None = None
) -> dict[str, Any]:
    """Measure with drafts and without, turn by turn. Raises SystemExit where an answer differs."""
    out: dict[str, Any] = {}
    unasked = iter(asked)
    for clients in CLIENTS:
        ratios, tokens, rates = [], [], []
        count = clients * PER_CLIENT[clients]
        for number in range(rounds):
            # Other rows in each turn: prompts that were just asked would be cached.
            rows = {on: list(itertools.islice(unasked, count)) for on in (True, False)}
            order = (True, False) if number % 2 else (False, True)
            turns = {on: await turn(client, rows[on], clients, drafts=on, most=most) for on in order}
            again = await turn(client, rows[True], clients, drafts=False, most=most)
            if turns[True].texts != again.texts:
                raise SystemExit("an answer differs with drafts and without: that must never be")
            ratios.append(turns[True].a_second / turns[False].a_second)
            tokens.append(turns[True].tokens_a_step)
            rates.append((turns[False].a_second, turns[True].a_second))
        out[str(clients)] = {
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "without": statistics.median(rate for rate, _ in rates),
            "with": statistics.median(rate for _, rate in rates),
            "tokens_a_step": statistics.median(tokens),
        }
    return out


async def measure(url: str, rounds: int) -> dict[str, Any]:
    """Measure the schema's drafts, the learned ones, and lookup, in this order."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        out: dict[str, Any] = {"schema": {}, "tasks": {}}
        for task in TASKS:
            (first, *_) = new_rows(task)
            one = await turn(client, [(task, first)], 1, drafts=True, most=None)
            out["schema"][task] = one.tokens - one.accepted
        for task in TASKS:
            seeds = [(task, row["messages"][-1:]) for row in read_heldout(task)]
            await turn(client, seeds, 8, drafts=True, most=None)
            rows = [(task, messages) for messages in new_rows(task)]
            learned = await turn(client, rows[:48], 1, drafts=True, most=None)
            out["tasks"][task] = {"tokens_a_step": learned.tokens_a_step}
        mixed = [
            (task, messages)
            for group in zip(*map(new_rows, TASKS), strict=True)
            for task, messages in zip(TASKS, group, strict=True)
        ]
        out["samples"] = await pairs(client, mixed, rounds)
        out["chat"] = await pairs(client, [("base", messages) for messages in chats(len(mixed))], rounds, most=48)
        return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE, help="Hugging Face folder of the base model")
    parser.add_argument("--dtype", default="bfloat16", help="weights of the replica: bfloat16, int8 or float32")
    parser.add_argument("--rounds", type=int, default=3, choices=(1, 2, 3))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder of the results")
    arguments = parser.parse_args()
    about = machine.describe()
    with replica(arguments.base, arguments.threads, "--dtype", arguments.dtype) as url:
        measured = asyncio.run(measure(url, arguments.rounds))
    lines, fine = report(measured)
    print("\n".join(lines))
    folder = arguments.out or machine.RESULTS / machine.cpu_kind(about)
    print(
        machine.write_suite(
            folder, f"speculation_{arguments.dtype}", {"machine": about, "samples": measured["samples"]}, [lines]
        )
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
