"""The workload: English prompts of 64 to 256 tokens, 64 greedy output tokens, and the adapter that each request names.

The module imports only the standard library, so that a peer's environment can import it. Prompts are the same in every
scenario, so that base and adapters are compared on the same token counts.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

OUTPUT_TOKENS, SHORTEST, LONGEST = 64, 64, 256
ADAPTERS = 32
SCENARIOS = ("base", "one", "uni8", "uni32", "zipf32", "distinct")
# Enough rounds of requests for a steady state, few enough for two cores.
REQUESTS = {1: 6, 4: 16, 16: 48, 32: 64}


@dataclass(frozen=True, slots=True)
class Item:
    """One request: its prompt's token ids and the adapter's name, None for the base."""

    adapter: str | None
    prompt_ids: list[int]
    max_tokens: int = OUTPUT_TOKENS


def adapter_names(count: int = ADAPTERS) -> list[str]:
    """Return the folder names of the seeded adapters."""
    return [f"a{index:02d}" for index in range(count)]


def prompts(encode: Callable[[str], list[int]], count: int, seed: int) -> list[list[int]]:
    """Return the token ids of `count` passages of the prose that comes with Python."""
    words = _prose().split(" ")
    rng = random.Random(seed)
    out = []
    while len(out) < count:
        length = rng.randint(SHORTEST, LONGEST)
        start = rng.randrange(len(words) - 400)
        ids = encode(" ".join(words[start : start + 320]))[:length]
        if len(ids) == length:
            out.append(ids)
    return out


def assign(scenario: str, count: int, seed: int) -> list[str | None]:
    """Return the adapter of each request. Raises ValueError for an unknown scenario."""
    rng = random.Random(seed + 1)
    names = adapter_names()
    if scenario == "base":
        return [None] * count
    if scenario == "one":
        return [names[5]] * count
    if scenario == "uni8":
        return [names[rng.randrange(8)] for _ in range(count)]
    if scenario == "uni32":
        return [names[rng.randrange(ADAPTERS)] for _ in range(count)]
    if scenario == "zipf32":
        return list(rng.choices(names, weights=[1 / (rank + 1) for rank in range(ADAPTERS)], k=count))
    if scenario == "distinct":
        return [names[index % ADAPTERS] for index in range(count)]
    raise ValueError(f"unknown scenario {scenario!r}")


def write(folder: Path, encode: Callable[[str], list[int]], seed: int) -> None:
    """Write one JSON file per scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    count = max(REQUESTS.values())
    texts = prompts(encode, count, seed)
    for scenario in SCENARIOS:
        items = [asdict(Item(name, ids)) for name, ids in zip(assign(scenario, count, seed), texts, strict=True)]
        (folder / f"{scenario}.json").write_text(json.dumps(items), encoding="utf-8")


def read(folder: Path, scenario: str, concurrency: int, scale: float = 1.0) -> list[Item]:
    """Return the requests of one cell."""
    count = max(2, int(REQUESTS.get(concurrency, 2 * concurrency) * scale))
    items = json.loads((folder / f"{scenario}.json").read_text(encoding="utf-8"))
    return [Item(**item) for item in items[:count]]


def _prose() -> str:
    from pydoc_data import topics

    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    paragraphs = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", text))
    # Keep sentences and drop tables and code: long, capitalised, ended by a full stop, few symbols.
    return " ".join(
        p
        for p in paragraphs
        if len(p) > 200
        and p[0].isupper()
        and p[-1] in ".:"
        and sum(c.isalpha() or c in " ,.'" for c in p) > 0.9 * len(p)
    )
