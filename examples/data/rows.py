"""The nouns of the generators: task, row, split, and the noise that makes rows look typed by people."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "heldout"]

HELDOUT_SEED = 20_250
TRAIN_SEED = 7
# A higher share than in real traffic would teach the spelling more than the task.
TYPO_SHARE = 0.15


@dataclass(frozen=True)
class Row:
    """One user text with the labels expected back, and the template and phrases it was made of."""

    text: str
    expected: Mapping[str, str]
    template: str
    phrases: tuple[str, ...]

    def answer(self) -> str:
        """Return the exact text an adapter is trained to write: compact JSON without spaces."""
        return json.dumps(dict(self.expected), separators=(",", ":"))


@dataclass(frozen=True)
class Bank:
    """Phrases (or templates) of one kind; the two lists are disjoint."""

    train: tuple[str, ...]
    heldout: tuple[str, ...]

    def of(self, split: Split) -> tuple[str, ...]:
        """Return the list that ``split`` may draw from."""
        return self.train if split == "train" else self.heldout


@dataclass(frozen=True)
class Task:
    """A classification task: its system prompt, its labels per answer key, and how a row is drawn.

    ``draw(rng, split, expected)`` makes one row for the given labels. ``banks`` holds every bank the task draws from.
    """

    name: str
    system: str
    labels: Mapping[str, tuple[str, ...]]
    draw: Callable[[random.Random, Split, Mapping[str, str]], Row]
    banks: Mapping[str, Bank]

    def messages(self, row: Row) -> list[dict[str, str]]:
        """Return the chat messages of a row, the same for the base model and for the adapter."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": row.text}]

    def combinations(self) -> list[dict[str, str]]:
        """Return every combination of labels, in a fixed order."""
        combined: list[dict[str, str]] = [{}]
        for key, values in self.labels.items():
            combined = [{**given, key: value} for given in combined for value in values]
        return combined


def read_banks(task: str) -> dict[str, Bank]:
    """Return the banks of ``<task>.toml`` beside this file, by dotted table name such as ``kinds.groceries``."""
    found: dict[str, Bank] = {}

    def collect(prefix: str, table: Mapping[str, Any]) -> None:
        if "train" in table:
            found[prefix] = Bank(tuple(table["train"]), tuple(table["heldout"]))
            return
        for key, value in table.items():
            collect(f"{prefix}.{key}" if prefix else key, value)

    collect("", tomllib.loads(Path(__file__).with_name(f"{task}.toml").read_text(encoding="utf-8")))
    return found


def add_typo(rng: random.Random, text: str) -> str:
    """Swap, drop or double one inner letter of one word of six letters or more; short texts come back unchanged."""
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) >= 6 and word.isalpha()]
    if not long:
        return text
    at = rng.choice(long)
    word = words[at]
    i = rng.randrange(2, len(word) - 2)
    kind = rng.choice(("swap", "drop", "double"))
    if kind == "swap":
        word = word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    elif kind == "drop":
        word = word[:i] + word[i + 1 :]
    else:
        word = word[:i] + word[i] + word[i:]
    words[at] = word
    return " ".join(words)


def capitalise(text: str) -> str:
    """``text`` with its first letter in upper case and the rest unchanged."""
    return text[:1].upper() + text[1:]


def as_typed(rng: random.Random, text: str) -> str:
    """Return free text as people type it: sometimes all in lower case, without the final stop, or with a typo."""
    if rng.random() < 0.25:
        text = text.lower()
    if rng.random() < 0.3:
        text = text.rstrip(".")
    if rng.random() < TYPO_SHARE:
        text = add_typo(rng, text)
    return text


def _balanced(task: Task, count: int, split: Split, seed: int) -> list[Row]:
    """Return ``count`` distinct rows whose label combinations are as even as ``count`` allows."""
    rng = random.Random(f"{task.name}/{split}/{seed}")
    rows: list[Row] = []
    seen: set[str] = set()
    while len(rows) < count:
        combinations = task.combinations()
        rng.shuffle(combinations)
        for expected in combinations[: count - len(rows)]:
            row = task.draw(rng, split, expected)
            while row.text in seen:
                row = task.draw(rng, split, expected)
            seen.add(row.text)
            rows.append(row)
    return rows


def train_rows(task: Task, count: int, seed: int = TRAIN_SEED) -> list[Row]:
    """Return ``count`` distinct training rows, the same for the same seed."""
    return _balanced(task, count, "train", seed)


def heldout_rows(task: Task, count: int, seed: int = HELDOUT_SEED) -> list[Row]:
    """Return ``count`` distinct held-out rows, the same for the same seed."""
    return _balanced(task, count, "heldout", seed)
