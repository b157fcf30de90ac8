"""Three real engines, 24 adapters by Zipf's law, eight resident each: routed calls meet their adapters and prefixes.

The shipped rule against one replica after the other, in interleaved runs of the same trace. Counts alone: two cores
tell nothing about seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from routing import Call, Fleet, View, key_of, rank
from serving.platform.admin import snapshot
from serving.platform.fleet_views import Snapshot
from tests.serving.harness import Running, running
from tests.serving.tiny import Tiny

REPLICAS, ADAPTERS, RESIDENT, CALLS, AT_ONCE = 3, 24, 8, 480, 6
FRESH = 60  # tokens of a turn
_MOST_BEFORE = 384  # tokens: the tiny model reads 512
CONTINUED = 0.6  # of the calls go on with a conversation
BOUND = {"loads": 0.4, "prefix tokens": 2.0}  # against one after the other


@dataclass(frozen=True)
class Turn:
    """One call of the trace; `goes_on` names the conversation's call before it."""

    adapter: str
    conversation: int
    goes_on: int | None
    fresh: tuple[int, ...]


@dataclass
class Counted:
    """What the engines did in one run."""

    loads: int = 0
    prefix_tokens: int = 0
    answered: int = 0


@pytest.fixture(scope="module")
def many(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The tiny model with 24 adapters of one rank."""
    folder = tmp_path_factory.mktemp("many") / "adapters"
    source = next(one for one in sorted(tiny.adapters.iterdir()) if _rank_of(one) == 8)
    weights = load_file(source / "adapter_model.safetensors")
    torch.manual_seed(3)
    for number in range(ADAPTERS):
        made = folder / f"a{number}"
        shutil.copytree(source, made)
        save_file(
            {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in weights.items()},
            made / "adapter_model.safetensors",
        )
    return replace(tiny, adapters=folder)


def _rank_of(folder: Path) -> int:
    config = json.loads((folder / "adapter_config.json").read_text())
    plain = not config.get("use_dora") and not config.get("rank_pattern") and not config.get("modules_to_save")
    return int(config["r"]) if plain else 0


def trace(seed: int) -> list[Turn]:
    """Return calls of which most go on where a recent conversation ended; handfuls of AT_ONCE run side by side."""
    chance = random.Random(seed)
    shares = [1 / (place + 1) for place in range(ADAPTERS)]
    turns: list[Turn] = []
    open_turns: list[int] = []  # the last of each conversation
    for number in range(CALLS):
        handful = number - number % AT_ONCE
        ended = [one for one in open_turns if handful - 40 <= one < handful]
        if ended and chance.random() < CONTINUED:
            goes_on = chance.choice(ended)
            open_turns.remove(goes_on)
            adapter, conversation = turns[goes_on].adapter, turns[goes_on].conversation
        else:
            adapter, conversation, goes_on = f"a{chance.choices(range(ADAPTERS), shares)[0]}", number, None
        open_turns.append(number)
        turns.append(Turn(adapter, conversation, goes_on, tuple(chance.randrange(5, 200) for _ in range(FRESH))))
    return turns


def view_of(name: str, told: Snapshot, at: float) -> View:
    load = told.load
    return View(
        name,
        at,
        load.seats,
        load.running,
        load.waiting,
        (load.interactive, load.standard, load.batch),
        load_s=told.load_seconds,
        adapters=frozenset(key_of(digest) for digest in told.adapters),
        token_s=told.token_seconds,
        prefixes=frozenset(told.prefixes),
    )


class Routed:
    """Chooses as a gateway does, from what the engines tell before each handful of calls."""

    def __init__(self, engines: list[Running]) -> None:
        self._engines, self._fleet, self._chance, self._now = engines, Fleet(), random.Random(1), 0.0

    def look(self, now: float) -> None:
        self._now = now
        for number, one in enumerate(self._engines):
            self._fleet.update(view_of(f"replica-{number}", snapshot(one.engine, []), now))

    def choose(self, turn: Turn) -> int:
        digest = self._engines[0].digest(turn.adapter) or ""
        call = Call(key_of(digest), key_of(str(turn.conversation)), slack_s=5.0, prompt_tokens=len(turn.fresh))
        place = rank(call, self._fleet, self._now, self._chance)[0].place
        self._fleet.note_sent(place)
        return place


class InTurn:
    """Chooses one replica after the other."""

    def __init__(self, engines: list[Running]) -> None:
        self._next = 0

    def look(self, now: float) -> None:
        pass

    def choose(self, turn: Turn) -> int:
        self._next += 1
        return self._next % REPLICAS


@contextlib.asynccontextmanager
async def three(tiny: Tiny) -> AsyncIterator[list[Running]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running(tiny, adapter_slots=RESIDENT, max_num_seqs=16, kv_cache_mb=1))
            for _ in range(REPLICAS)
        ]


async def play(tiny: Tiny, turns: list[Turn], rule: type[Routed] | type[InTurn]) -> Counted:
    counted, prompts = Counted(), dict[int, tuple[int, ...]]()
    async with three(tiny) as engines:
        chooser = rule(engines)

        async def ask(number: int) -> None:
            turn = turns[number]
            before = prompts[turn.goes_on] if turn.goes_on is not None else ()
            prompt = (*before[:_MOST_BEFORE], *turn.fresh)
            engine = engines[chooser.choose(turn)]
            request = engine.request(prompt, turn.adapter, tokens=2)
            deltas = await engine.run(replace(request, conversation=key_of(str(turn.conversation))))
            counted.answered += bool(deltas)
            prompts[number] = (*prompt, *(token for delta in deltas for token in delta.token_ids))

        for first in range(0, len(turns), AT_ONCE):
            chooser.look(float(first))
            await asyncio.gather(*(ask(number) for number in range(first, first + AT_ONCE)))
        for one in engines:
            await one.settled()
            counted.loads += one.engine.adapters.counters.loads
            counted.prefix_tokens += one.engine.stats.prefix_hit_tokens
    return counted


@pytest.mark.deep
async def test_routed_calls_meet_their_adapters_and_prefixes(many: Tiny) -> None:
    ours, theirs = Counted(), Counted()
    for seed in range(2):
        for total, rule in ((ours, Routed), (theirs, InTurn)):
            found = await play(many, trace(seed), rule)
            total.loads += found.loads
            total.prefix_tokens += found.prefix_tokens
            total.answered += found.answered
    assert ours.answered == theirs.answered == 2 * CALLS
    assert ours.loads <= BOUND["loads"] * theirs.loads, (ours, theirs)
    assert ours.prefix_tokens >= BOUND["prefix tokens"] * theirs.prefix_tokens, (ours, theirs)
