"""How often each token is in a text, on the device: what penalties read, for one sequence per slot."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from serving.core import Sequence, Status
from serving.kernels.triton.sample_adjust import IN_PROMPT
from serving.kernels.upload import upload

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Slot:
    """A row of the counts, and how many tokens of its sequence it has seen."""

    index: int
    length: int


@dataclass(frozen=True, slots=True)
class Fill:
    """A slot that gets the counts of another text.

    prompt, output: int64 token ids; the prompt's only where it counts
    """

    index: int
    prompt: Int64s
    output: Int64s


class TokenCounts:
    """Counts of up to `slots` sequences. A sequence keeps its slot, also while it is preempted, until another needs
    it."""

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self.data = torch.zeros(slots, vocab, dtype=torch.int32, device=device)
        self._ones = torch.ones(1, dtype=torch.int32, device=device)
        self._free = list(range(slots))
        self._slots: dict[Sequence, _Slot] = {}

    def prepare(self, sequences: Seq[Sequence], ends: Seq[int]) -> list[Fill]:
        """Give every sequence a slot that knows its first `ends` tokens. Returns the slots to fill first.

        The token sampled next is counted on the device: the following step's end is one more.
        """
        fills = []
        for sequence, end in zip(sequences, ends, strict=True):
            slot = self._slots.get(sequence)
            if slot is None:
                if not self._free:
                    self._reclaim(set(sequences))
                slot = self._slots[sequence] = _Slot(self._free.pop(), -1)
            if slot.length != end:
                fills.append(self._fill(slot.index, sequence, end))
            slot.length = end + 1
        return fills

    def slot(self, sequence: Sequence) -> int:
        """Return the slot of a sequence that has one."""
        return self._slots[sequence].index

    def apply(self, fill: Fill) -> None:
        """Launch a fill."""
        row = self.data[fill.index].zero_()
        if len(fill.prompt):
            row.index_fill_(0, upload(fill.prompt, row.device), IN_PROMPT)
        if len(fill.output):
            ids = upload(fill.output, row.device)
            row.index_add_(0, ids, self._ones.expand(len(ids)))

    def _fill(self, index: int, sequence: Sequence, end: int) -> Fill:
        # A text whose last token is in flight was sampled by the last step, so that its slot knows it.
        assert end == len(sequence.tokens), "counts of a token that the host does not know"
        first = sequence.prompt_tokens
        prompt = sequence.tokens[:first] if sequence.request.sampling.repetition_penalty != 1 else []
        return Fill(index, np.array(prompt, np.int64), np.array(sequence.tokens[first:], np.int64))

    def _reclaim(self, needed: set[Sequence]) -> None:
        """Free the slots of sequences that have ended, or else of all that are not in this step."""
        idle = [sequence for sequence in self._slots if sequence not in needed]
        ended = [sequence for sequence in idle if sequence.status is Status.FINISHED]
        for sequence in ended or idle:
            self._free.append(self._slots.pop(sequence).index)
