"""Executes step plans in plain torch on any device: the reference for the kernels, and the runner where there are
none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from lora_kernels import BatchMetadata
from serving.core import Sequence as Running
from serving.kv.paged import PagedKV
from serving.models.linears import TorchLinears
from serving.models.llama import Llama
from serving.ports import ResidentAdapters
from serving.runner.adapters import StepBatches, extras_of
from serving.runner.packing import pack_step
from serving.runner.work import StepWork
from serving.sampling import embed, sample, score
from serving.steps import ComputedStep, SampledToken, StepPlan
from serving.trace import NO_TRACE, Tracer


class TorchRunner:
    """`serving.ports.Runner` on one device: `launch` returns when the step is computed."""

    trace: Tracer = NO_TRACE
    depth = 0
    paces_loads = False
    elastic_memory = False
    max_draft_rows = cheap_rows = 0
    drafts_in_turn = True

    def __init__(self, model: Llama, kv: PagedKV, adapters: ResidentAdapters) -> None:
        self.model, self.kv, self.adapters = model, kv, adapters
        self._batches = StepBatches(adapters)
        self.linears = TorchLinears(model.weights)
        self._device = kv.data.device

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def block_size(self) -> int:
        return self.kv.block_size

    def launch(self, plan: StepPlan) -> ComputedStep:
        """Launch as `StepRunner.launch` and compute the step."""
        return ComputedStep(self.execute(plan))

    def execute(self, plan: StepPlan) -> Sequence[SampledToken]:
        """Compute a step: write KV for all chunks and return one answer per sampling chunk, in plan order."""
        # Single tokens first, both decodes and ends of prefills: attention computes them together.
        chunks = sorted(plan.chunks, key=lambda chunk: chunk.count > 1)
        slots = [self.adapters.slot(chunk.sequence.digest) for chunk in chunks]
        hidden, batch = self.compute(StepWork.of(plan, pack_step(chunks, self.kv.block_size), slots))
        answers: dict[int, SampledToken] = {}
        for embedding in (False, True):
            rows, sequences, end = [], [], 0
            for chunk in chunks:
                end += chunk.count
                if chunk.samples and chunk.sequence.request.embed == embedding:
                    rows.append(end - 1)
                    sequences.append(chunk.sequence)
            if rows:
                last = hidden[torch.tensor(rows, device=self._device)]
                if embedding:
                    some = embed(self.model.final_norm(last))
                else:
                    extras = (
                        None if batch is None or batch.extras is None else batch.extras.picked(batch.row_slots[rows])
                    )
                    some = sample(self.model.logits(last, extras), sequences)
                answers.update(zip(map(id, sequences), some, strict=True))
        end = 0
        for chunk in chunks:
            end += chunk.count
            if positions := chunk.sequence.unscored(chunk.start, chunk.end):
                before = end - chunk.end
                some_rows = hidden[before + positions.start : before + positions.stop]
                score([(chunk.sequence, positions)], some_rows, self._logits)
        return [answers[id(chunk.sequence)] for chunk in plan.chunks if chunk.samples]

    def compute(self, work: StepWork) -> tuple[torch.Tensor, BatchMetadata | None]:
        """Write the KV of all rows. Returns their hidden states before the final norm, and their adapters."""
        self.kv.copy(work.copies.tolist())
        self.kv.zero(work.stale.tolist())
        batch = self._batches.of_rows(tuple(work.slots.tolist()), tuple(work.counts.tolist()))
        return self.model.forward(work.inputs(self.kv.block_size, self._device), self.kv, batch), batch

    def _logits(self, sequence: Running, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden, extras_of(self.adapters, sequence))

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero KV blocks now instead of when they are next allocated."""
        self.kv.zero(list(blocks))

    def give_back(self, blocks: Iterable[int]) -> None:
        """Do nothing: memory is not elastic here."""
