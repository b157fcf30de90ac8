"""From a step's hidden states to its answers: the gather of wanted rows, their logits, the choice of tokens, copies.

A graph holds the forward pass alone. These launches, about ten a step, follow it eagerly, so that their number of rows
and the settings of sequences are free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from serving.core import Sequence as Running
from serving.kernels.triton.argmax import argmax
from serving.models.llama_gpu import GpuLlama
from serving.runner.rows import PackedRows
from serving.runner.upload import Int32s
from serving.sampling import embed, sample, score
from serving.steps import SampledToken, StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class GpuStep:
    """A launched step. Call `result` once, from the engine thread.

    best: host memory that the device fills with each sample's likeliest token, or -1
    special: logits of the sequences that the sampler decides on
    vectors: final hidden states of sequences that asked for an embedding, then of prompt rows that `head` scores
    """

    plan: StepPlan
    step: PackedRows
    best: torch.Tensor
    special: torch.Tensor | None
    vectors: torch.Tensor | None
    head: Callable[[torch.Tensor], torch.Tensor]
    done: torch.cuda.Event | None
    aside: torch.cuda.Stream | None  # on the step's own, samplers would wait for the step after it

    def result(self) -> Sequence[SampledToken]:
        """Wait for the device. Returns one answer per sampling chunk, in plan order."""
        if self.done is not None:
            self.done.synchronize()
        sequences = self.step.sampling
        answers = {
            id(sequence): SampledToken(token if token >= 0 else None)
            for sequence, token in zip(sequences, self.best[: len(sequences)].tolist(), strict=True)
        }
        with torch.cuda.stream(self.aside):
            if self.special is not None:
                chosen = [sequences[place] for place in self.step.special()]
                answers.update(zip(map(id, chosen), sample(self.special.float(), chosen), strict=True))
            if self.vectors is not None:
                embeds = len(self.step.embedding)
                vectors = embed(self.vectors[:embeds].float())
                answers.update(zip(map(id, self.step.embedding), vectors, strict=True))
                score(self.step.scoring, self.vectors[embeds:], self.head)
        return [answers[id(chunk.sequence)] for chunk in self.plan.chunks if chunk.samples]


class Head:
    """Launches what follows the forward pass of each step, on the stream of the step.

    max_rows, max_samples: the most tokens and sequences of a step
    tokens: int32 [max_samples] at a fixed address on the device: each sample of the last step, -1 without a token
    """

    def __init__(self, model: GpuLlama, max_rows: int, max_samples: int, device: torch.device) -> None:
        self.tokens = torch.zeros(max_samples, dtype=torch.int32, device=device)
        self.shapes = {"sample_rows": (max(max_rows, max_samples),), "special": (max_samples,)}
        self._model = model
        cuda = device.type == "cuda"
        self._aside = torch.cuda.Stream(device) if cuda else None
        self._answers = [torch.zeros(max_samples, dtype=torch.int32, pin_memory=cuda) for _ in range(2)]
        self._places: dict[int, int] = {}  # sequence → its place among the samples of the last step

    def place(self, sequence: Running) -> int:
        """Return the place in `tokens` of a sequence that the last step sampled. Raises KeyError for another."""
        return self._places[id(sequence)]

    def fill(self, arrays: Mapping[str, Int32s], step: PackedRows) -> None:
        """Write what `launch` reads on the device, in the arrays of `shapes`."""
        special = step.special()
        arrays["sample_rows"][: len(step.sample_rows)] = step.sample_rows
        arrays["special"][: len(special)] = special

    def launch(
        self, plan: StepPlan, step: PackedRows, hidden: torch.Tensor, tensors: Mapping[str, torch.Tensor]
    ) -> GpuStep:
        """Start the choice of tokens and the copies to the host, without waiting.

        hidden: [rows, hidden] after the final norm; the next step may overwrite it
        tensors: those of `shapes`, uploaded as `fill` wrote them
        """
        count, wanted = len(step.sampling), len(step.sample_rows)
        final = hidden[tensors["sample_rows"][:wanted]]
        chosen = None
        if count:
            logits = self._model.logits(final[:count])
            argmax(logits, self.tokens[:count])
            special = tensors["special"][: len(step.special())]
            chosen = logits[special] if len(special) else None
        self._places = {id(sequence): place for place, sequence in enumerate(step.sampling)}
        self._answers.reverse()
        best, done = self._answers[0], None
        best.copy_(self.tokens, non_blocking=True)
        vectors = final[count:] if wanted > count else None
        if self._aside is not None:
            done = torch.cuda.Event()
            done.record()
        return GpuStep(plan, step, best, chosen, vectors, self._model.logits, done, self._aside)
