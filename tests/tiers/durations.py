"""How long files and dear items took: tests/tiers/durations.json, by which work is handed out and cut into shards."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

FILE = Path(__file__).with_name("durations.json")
UNKNOWN = 0.2  # seconds of an item that was never measured
ALONE = 3.0  # seconds from which an item is handed out by itself, if it shares nothing with its file


@dataclass(frozen=True)
class Durations:
    """Seconds of the wall clock: of each file's cheap items in the mean, and of each dear item.

    files: path -> seconds of an item in the mean, dear ones left out
    items: node id -> seconds of a dear item
    alone: node ids that share nothing with their file
    """

    files: Mapping[str, float]
    items: Mapping[str, float]
    alone: frozenset[str]

    @classmethod
    def read(cls) -> Self:
        if not FILE.exists():
            return cls({}, {}, frozenset())
        stored = json.loads(FILE.read_text())
        alone = {name for name, found in stored["items"].items() if found["alone"]}
        return cls(
            stored["files"], {name: found["seconds"] for name, found in stored["items"].items()}, frozenset(alone)
        )

    def of(self, nodeid: str) -> float:
        """Return the seconds to expect of an item."""
        known = self.items.get(nodeid)
        return self.files.get(nodeid.partition("::")[0], UNKNOWN) if known is None else known

    def unit(self, nodeid: str) -> str:
        """Return what is handed to a worker as one: the item's file, or the item itself."""
        return nodeid if nodeid in self.alone else nodeid.partition("::")[0]


def parts(weights: Mapping[str, float], count: int) -> list[list[str]]:
    """Cut units into `count` lists of about the same sum, each in falling order. The same input, the same lists."""
    made: list[list[str]] = [[] for _ in range(count)]
    loads = [(0.0, number) for number in range(count)]
    for unit in sorted(weights, key=lambda name: (-weights[name], name)):
        load, number = heapq.heappop(loads)
        made[number].append(unit)
        heapq.heappush(loads, (load + weights[unit], number))
    return made
