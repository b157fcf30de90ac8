"""The model and the runner of rank 0 on GPUs, one GPU per rank. Steps are launched kernel by kernel, without graphs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lora_kernels import BatchMetadata
from serving.models.llama_gpu import GpuLlama
from serving.parallel import wire
from serving.parallel.collectives import Summed
from serving.parallel.ranks import Ranks
from serving.runner.gpu import GpuRunner, GpuWork
from serving.runner.step_graphs import Shape
from serving.steps import ComputedStep, StepPlan


class ShardedGpuLlama(Summed, GpuLlama):  # type: ignore[misc]  # a static method becomes one of the instance
    """The model of one rank. Set `collectives` before the first step."""


def follow_step(runner: GpuRunner, command: wire.GpuStep) -> None:
    """Compute another rank's part of a step that rank 0 has laid out."""
    c = command
    runner.buffer.begin()
    runner.buffer.used(c.entries)[:] = c.buffer()
    runner.compute(GpuWork(Shape(*c.shape), c.units, c.entries, c.slots, c.counts, c.copies))


class LeadingGpuRunner(GpuRunner):
    """Rank 0's runner. The tokens of a step are known before the next is told to the ranks: none are in flight."""

    depth = 0

    def __init__(self, ranks: Ranks, *args: Any, **settings: Any) -> None:
        self._ranks = ranks
        super().__init__(*args, **settings)

    def launch(self, plan: StepPlan) -> ComputedStep:  # type: ignore[override]  # it is computed when this returns
        """Launch as `StepRunner.launch` and compute the step."""
        return ComputedStep(super().launch(plan).result())

    def compute(self, work: GpuWork) -> BatchMetadata | None:
        """Have every rank compute its part of the rows in the buffer's host side."""
        rows = self.buffer.used(work.entries).tobytes()
        slots, counts, copies = list(work.slots), list(work.counts), list(work.copies)
        shape = (work.shape.rows, work.shape.mixes, work.shape.adapted)
        self._ranks.tell(wire.GpuStep(shape, work.units, work.entries, slots, counts, copies, rows))
        try:
            return super().compute(work)
        except BaseException as error:
            self._ranks.abandon(error)
            raise

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero KV blocks on every rank before this returns."""
        gone = list(blocks)
        super().zero(gone)
        self._ranks.zero(gone)
