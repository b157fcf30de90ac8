"""From a step's hidden states to its answers: the gather of wanted rows, their logits, the choice of tokens, copies.

A graph holds the forward pass alone. These launches, about ten a step, follow it eagerly, so that their number of rows
and the settings of sequences are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lora_kernels import BatchMetadata
from serving.core import Sequence as Running
from serving.kernels.upload import Int32s
from serving.models.llama_gpu import GpuLlama
from serving.ports import ResidentAdapters
from serving.runner.adapters import extras_of
from serving.runner.rows import PackedRows
from serving.sampling import agreed, embed, score
from serving.sampling.device import DeviceSampler, Work
from serving.steps import SampledToken, StepPlan


@dataclass(slots=True, eq=False)
class GpuStep:
    """A launched step. Call `result` once, from the engine thread.

    head: launches what is deferred of this step
    vectors: final hidden states of sequences that asked for an embedding, then of prompt rows that are scored
    work: the sampling of the step, None where nothing is sampled or as long as it is deferred
    done: recorded behind the last launch
    """

    plan: StepPlan
    step: PackedRows
    head: Head
    vectors: torch.Tensor | None
    work: Work | None = None
    done: torch.cuda.Event | None = None

    def result(self) -> Sequence[SampledToken]:
        """Wait for the device. Returns one answer per sampling chunk, in plan order."""
        self.head.finish()
        if self.done is not None:
            self.done.synchronize()
        answers: dict[int, SampledToken] = {}
        if self.step.sampling:
            if self.work is None:
                raise RuntimeError("the step's deferred sampling failed")
            chosen = agreed(self.work.answers(), self.step.drafts)
            answers.update(zip(map(id, self.step.sampling), chosen, strict=True))
        if self.vectors is not None:
            with torch.cuda.stream(self.head.aside):
                embeds = len(self.step.embedding)
                vectors = embed(self.vectors[:embeds].float())
                answers.update(zip(map(id, self.step.embedding), vectors, strict=True))
                score(self.step.scoring, self.vectors[embeds:], self.head.logits)
        return [answers[id(chunk.sequence)] for chunk in self.plan.chunks if chunk.samples]


@dataclass(frozen=True, slots=True, eq=False)
class _Deferred:
    """A step whose tokens cannot be chosen yet, because a grammar waits for the token before. ends: see `prepare`."""

    step: GpuStep
    ends: list[int]
    logits: torch.Tensor


class Head:
    """Launches what follows the forward pass of each step, on the stream of the step.

    max_rows, max_samples: the most tokens of a step, and the most rows that it samples
    aside: for what is computed in `result`; on the step's own stream, it would wait for the step after it
    """

    def __init__(
        self, model: GpuLlama, adapters: ResidentAdapters, max_rows: int, max_samples: int, device: torch.device
    ) -> None:
        self.shapes = {"sample_rows": (max(max_rows, max_samples),)}
        self._model, self._adapters = model, adapters
        self.aside = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._sampler = DeviceSampler(model.config.vocab_size, max_samples, device)
        self._deferred: _Deferred | None = None
        self._places: dict[int, int] = {}  # sequence → its place among the samples of the last step

    def logits(self, sequence: Running, final: torch.Tensor) -> torch.Tensor:
        """Return the logits of rows of one sequence."""
        return self._model.logits(final, extras_of(self._adapters, sequence))

    @property
    def tokens(self) -> torch.Tensor:
        """int32 [max_samples] at a fixed address on the device: each sample of the last step, -1 without a token."""
        return self._sampler.tokens

    def place(self, sequence: Running) -> int:
        """Return the place in `tokens` of a sequence that the last step sampled. Raises KeyError for another."""
        return self._places[id(sequence)]

    def fill(self, arrays: Mapping[str, Int32s], step: PackedRows) -> None:
        """Write what `launch` reads on the device, in the arrays of `shapes`."""
        arrays["sample_rows"][: len(step.sample_rows)] = step.sample_rows

    def finish(self) -> None:
        """Launch the sampling that the last step deferred, if it did. Call it before the next step's launches: the host
        has recorded the tokens of the step before the last by then."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self._sample(deferred.step, deferred.ends, deferred.logits)

    def launch(
        self,
        plan: StepPlan,
        step: PackedRows,
        hidden: torch.Tensor,
        tensors: Mapping[str, torch.Tensor],
        batch: BatchMetadata | None = None,
    ) -> GpuStep:
        """Start the choice of tokens and the copies to the host, without waiting.

        The choice alone is deferred where a grammar does not know the token before, which is in flight.

        hidden: [rows, hidden] after the final norm; the next step may overwrite it
        tensors: those of `shapes`, uploaded as `fill` wrote them
        batch: the adapters of all rows
        """
        count, wanted = step.samples, len(step.sample_rows)
        final = hidden[tensors["sample_rows"][:wanted]]
        launched = GpuStep(plan, step, self, final[count:] if wanted > count else None)
        sampled = step.sampled
        self._places = {id(sequence): place for place, sequence in enumerate(sampled)}
        if not count:
            launched.done = self._event()
            return launched
        extras = None
        if batch is not None and batch.extras is not None:
            extras = batch.extras.picked(batch.row_slots[tensors["sample_rows"][:count]])
        logits = self._model.logits(final[:count], extras)
        ends = step.ends
        if any(
            sequence.request.sampling.constraint is not None and before > len(sequence.tokens)
            for sequence, before in zip(sampled, ends, strict=True)
        ):
            self._deferred = _Deferred(launched, ends, logits)
        else:
            self._sample(launched, ends, logits)
        return launched

    def _sample(self, launched: GpuStep, ends: list[int], logits: torch.Tensor) -> None:
        work = self._sampler.prepare(launched.step.sampled, ends)
        self._sampler.launch(work, logits)
        launched.work, launched.done = work, self._event()

    def _event(self) -> torch.cuda.Event | None:
        if self.aside is None:
            return None
        done = torch.cuda.Event()
        done.record()
        return done
