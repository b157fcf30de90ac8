"""The steps that are measured on a GPU: which rows, contexts, prompts and adapters, most telling first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.roofline import StepShape
from benchmarks.serving.gpu_model import RANK

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (2048, 8192, 32768)
ADAPTERS = (0, 1, 32, 256)
PROMPTS = (512, 1024, 2048, 4096, 8192)
CONTEXT = 512
# KV of so many positions is 34 GB for 32 layers of an 8B model: what an 80 GB card holds beside weights and adapters.
MOST_POSITIONS = 1 << 18


@dataclass(frozen=True)
class StepCase:
    """One kind of step, repeated: `batch` single tokens of about `context`, and each time a new prompt of `prompt`.

    adapters: distinct ones, in rotation over the rows; 0: the bare base
    sampled: temperature 0.8 and top-p 0.95, instead of the likeliest token
    """

    batch: int = 0
    context: int = CONTEXT
    prompt: int = 0
    adapters: int = 0
    sampled: bool = False

    @property
    def kind(self) -> str:
        """Return "decode", "mixed" or "prefill"."""
        return "mixed" if self.batch and self.prompt else "prefill" if self.prompt else "decode"

    @property
    def name(self) -> str:
        """Return a readable name."""
        parts = [f"{self.batch} rows of {self.context}"] if self.batch else []
        parts += [f"prompt of {self.prompt}"] if self.prompt else []
        parts += [f"{self.adapters} adapters"] if self.adapters else []
        return ", ".join(parts) + (", sampled" if self.sampled else "")

    @property
    def positions(self) -> int:
        """Return the KV positions of one step."""
        return self.batch * self.context + self.prompt

    @property
    def shape(self) -> StepShape:
        """Return the rows as the roofline counts them."""
        segments = self.batch + bool(self.prompt)
        distinct = min(self.adapters, segments)
        chunks = ((0, self.prompt),) if self.prompt else ()
        rows = self.batch + self.prompt
        return StepShape((self.context,) * self.batch, chunks, (RANK,) * distinct, rows if distinct else 0)


def cases(quick: bool = False) -> list[StepCase]:
    """Return every case once, in the order in which they are measured: a run that is cut short has the first ones."""
    found = list(dict.fromkeys(_ordered()))
    fitting = [case for case in found if case.positions <= MOST_POSITIONS]
    return fitting[:12] if quick else fitting


def _ordered() -> Iterator[StepCase]:
    for adapters in (0, 32):
        yield from (StepCase(batch, adapters=adapters) for batch in (32, 1))
    yield StepCase(256, adapters=256)
    yield from (StepCase(32, prompt=512, adapters=adapters) for adapters in (0, 32))
    yield from (StepCase(prompt=prompt) for prompt in (2048, 8192))
    yield from (StepCase(32, adapters=adapters, sampled=True) for adapters in (0, 32))
    yield StepCase(256)
    yield from (
        StepCase(batch, adapters=adapters) for batch in BATCHES for adapters in ADAPTERS if _telling(batch, adapters)
    )
    yield from (StepCase(prompt=prompt, adapters=adapters) for prompt in PROMPTS for adapters in (0, 1))
    for context in CONTEXTS:
        yield from (StepCase(batch, context, adapters=adapters) for batch in (1, 8, 32, 256) for adapters in (0, 32))
    yield from (StepCase(batch, prompt=prompt, adapters=32) for batch in (64, 256) for prompt in (512, 2048))
    yield from (StepCase(batch, adapters=adapters, sampled=True) for batch in (1, 256) for adapters in (0, 32))


def _telling(batch: int, adapters: int) -> bool:
    """Return whether a decode step can have so many distinct adapters, or differs from one that has fewer."""
    return adapters <= batch or adapters == 32
