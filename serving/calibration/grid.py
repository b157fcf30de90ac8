"""The grid of a calibration: steps, not workloads. Every step of every cell counts, those of its beginning too."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from serving.calibration.adapters import digest_of
from serving.calibration.driver import Driver
from serving.core import AdapterRef, Request, SamplingParams

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
PROMPTS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
SHORT = 33  # two blocks and a token: all but one token of a prompt is found in the prefix cache
DECODES = 5  # steps of a decode cell
_FEW = 4
_SMALL = 128  # sequences or prompt tokens of a reference cell, at most


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid.

    decodes: sequences that decode, with `context` tokens each; adapters: none, few, or distinct (one for each)
    prompt: tokens of a prompt beside them, behind `cached` tokens that are in the prefix cache
    cold: adapters that are loaded meanwhile, one after the other
    """

    decodes: int = 0
    context: int = SHORT
    adapters: str = "none"
    prompt: int = 0
    cached: int = 0
    cold: int = 0


def cells(max_seqs: int, max_rows: int, max_len: int, slots: int) -> list[Cell]:
    """Return the cells of one pass for a replica's limits."""
    long = min(513, max_len // 2)
    rows = [count for count in ROWS if count <= max_seqs]
    prompts = [count for count in PROMPTS if count <= min(max_rows, max_len - 8)]
    grid = [Cell(decodes=count, adapters=mix) for count in rows for mix in ("none", "distinct") if count <= slots]
    grid += [Cell(decodes=count, adapters="few") for count in rows[1::2]]
    grid += [Cell(decodes=count, context=long) for count in rows[::2]]
    grid += [Cell(prompt=count) for count in prompts]
    grid += [Cell(prompt=count, adapters="few") for count in prompts[::3]]
    grid += [Cell(prompt=count, cached=long) for count in prompts[1::3] if count + long <= max_len - 8]
    beside = prompts[len(prompts) // 2]
    grid += [Cell(decodes=count, prompt=beside, adapters=mix) for count in rows[2::3] for mix in ("none", "few")]
    some = min(8, max_seqs // 2 or 1)
    grid += [Cell(cold=4), Cell(decodes=some, cold=4)]
    return grid


class Grid:
    """Runs passes over the cells. ranks: of adapters, in turn"""

    def __init__(self, driver: Driver, ranks: tuple[int, ...], seed: int) -> None:
        planner, engine = driver.engine.planner, driver.engine
        self.driver, self.ranks = driver, ranks
        self._slots = engine.adapters.pool.num_slots
        self._cells = cells(
            planner.limits.max_num_seqs, planner.limits.max_batched_tokens, engine.max_model_len, self._slots
        )
        # Every other small cell of the base alone.
        plain = [cell for cell in self._cells if cell == Cell(decodes=cell.decodes) or cell == Cell(prompt=cell.prompt)]
        self._reference = [cell for cell in plain if max(cell.decodes, cell.prompt) <= _SMALL][::2]
        self._left: list[Cell] = []
        self._rng = random.Random(seed)
        self._ids = itertools.count()
        self._cold = itertools.count(10_000)
        # (seconds of a load, seconds of steps meanwhile, of pauses meanwhile)
        self.loads: list[tuple[float, float, float]] = []

    def pass_over(self, until: float) -> Iterator[tuple[int, int]]:
        """Run the cells in a new order; yield how many are done of how many. Ends early at `until`, of the driver's
        clock; the next pass then begins with those that are left: on a slow machine three parts of passes are to miss
        no cell that there is time for."""
        others = [cell for cell in self._cells if cell not in self._left]
        order = self._left + self._rng.sample(others, len(others))
        for done, cell in enumerate(order, 1):
            if self.driver.clock() > until:
                self._left = order[done - 1 :]
                return
            self._run(cell)
            yield done, len(order)
        self._left = []

    def reference(self) -> None:
        """Run the same few cells as ever: how long their steps take tells how fast the machine is now."""
        for cell in self._reference:
            self._run(cell)

    def warm_up(self) -> None:
        """Load every adapter of the grid and compute its shared prompt."""
        most = min(self._slots, max(cell.decodes for cell in self._cells))
        for number in range(most):
            self._prompt(SHORT, "shared", self._adapter(Cell(adapters="distinct"), number), 1)
        self.driver.finish()

    def _run(self, cell: Cell) -> None:
        driver = self.driver
        if cell.cached:
            self._prompt(cell.cached, "cached", None, 1)
            driver.finish()
        tokens = DECODES + (2 * cell.cold if cell.cold and cell.decodes else 0)
        for number in range(cell.decodes):
            self._prompt(cell.context, "shared", self._adapter(cell, number), tokens)
        if cell.prompt and cell.decodes:
            driver.turn()
        if cell.prompt:
            scope = "cached" if cell.cached else f"own {next(self._ids)}"
            self._prompt(cell.cached + cell.prompt, scope, self._adapter(cell, 0), 1)
        for _ in range(cell.cold):
            self._load(beside=cell.decodes > 0)
        driver.finish()

    def _load(self, *, beside: bool) -> None:
        """Load an adapter that was never there, on the idle replica or beside its decodes."""
        driver = self.driver
        digest = digest_of(self.ranks[next(self._ids) % len(self.ranks)], next(self._cold))
        counters = driver.engine.adapters.counters
        cold, first = counters.cold_seconds, (driver.computed, driver.paused)
        last = first
        self._prompt(8, "cold", digest, 1)
        while not driver.engine.adapters.is_ready(digest):
            if beside and not driver.engine.planner.running:
                return
            last = driver.computed, driver.paused
            driver.turn()
        took = counters.cold_seconds - cold
        self.loads.append((took, last[0] - first[0], last[1] - first[1]))

    def _adapter(self, cell: Cell, number: int) -> str | None:
        if cell.adapters == "none":
            return None
        number = number % _FEW if cell.adapters == "few" else number % self._slots
        return digest_of(self.ranks[number % len(self.ranks)], number)

    def _prompt(self, tokens: int, scope: str, digest: str | None, output: int) -> None:
        number = next(self._ids)
        first = () if scope in ("shared", "cached") else (20 + number % 200, 20 + number // 200 % 200)
        prompt = (*first, *(20 + place % 199 for place in range(len(first), tokens)))
        # No drafts: their rows would be in most steps of prompts like these, and a plan counts on none.
        self.driver.accept(
            Request(f"c{number}", "grid", scope, AdapterRef(digest), prompt, GREEDY, output, speculate=False)
        )
