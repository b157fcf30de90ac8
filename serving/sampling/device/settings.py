"""From sampling parameters to the settings that kernels read: one row per sequence, made when it is first sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from serving.core import ConstraintState, SamplingParams, Sequence, Status
from serving.errors import ConstraintFailed
from serving.kernels.triton import sample as layout
from serving.sampling.draw import LEAST_TEMPERATURE

Int32s = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Profile:
    """One sequence's settings, kept in `Sequence.sampler`.

    row: int32 [layout.COLUMNS]; SLOT and MASK belong to a batch
    biases: distinct tokens and what their logits get
    grammar: how far the grammar has followed the text, if there is one; `accepted` tokens of prompt and output
    """

    row: Int32s
    drawn: bool
    cut: bool
    counted: bool
    biases: dict[int, float]
    grammar: ConstraintState | None
    accepted: int

    @property
    def adjusted(self) -> bool:
        return self.counted or bool(self.biases) or self.grammar is not None

    def allowed_bits(self, sequence: Sequence) -> Int32s:
        """Return the tokens that may come next, as bits, after all tokens that are known. Raises ConstraintFailed."""
        assert self.grammar is not None
        fresh, self.accepted = sequence.tokens[self.accepted :], len(sequence.tokens)
        self.grammar.accept(fresh)
        return np.asarray(self.grammar.allowed_bits(), np.int32)


def profile_of(sequence: Sequence, vocab: int) -> Profile:
    """Return the sequence's settings, made at the first call."""
    if sequence.sampler is None:
        sequence.sampler = _make(sequence.request.sampling, sequence.prompt_tokens, vocab)
    assert isinstance(sequence.sampler, Profile)
    return sequence.sampler


def _make(params: SamplingParams, prompt_tokens: int, vocab: int) -> Profile:
    drawn = params.temperature > 0
    cut = drawn and (params.top_p < 1 or params.top_k > 0 or params.min_p > 0)
    biases: dict[int, float] = {}
    for token, value in params.logit_bias:
        if token < vocab:
            biases[token] = biases.get(token, 0.0) + value
    profile = Profile(
        row=np.zeros(layout.COLUMNS, np.int32),
        drawn=drawn,
        cut=cut,
        counted=params.penalises,
        biases=biases,
        grammar=None if params.constraint is None else params.constraint.begin(),
        accepted=prompt_tokens,
    )
    floats = profile.row.view(np.float32)
    profile.row[layout.FLAGS] = layout.DRAWN * drawn | layout.CUT * cut | layout.ADJUSTED * profile.adjusted
    profile.row[layout.TOP_K] = min(params.top_k, vocab)
    profile.row[[layout.SLOT, layout.MASK]] = -1
    floats[layout.TEMPERATURE] = max(params.temperature, LEAST_TEMPERATURE) if drawn else 1.0
    floats[layout.TOP_P], floats[layout.MIN_P] = params.top_p, params.min_p
    floats[layout.REPETITION] = params.repetition_penalty
    floats[layout.FREQUENCY], floats[layout.PRESENCE] = params.frequency_penalty, params.presence_penalty
    return profile


def masks_of(rows: list[int], sequences: tuple[Sequence, ...], bits: Int32s, vocab: int) -> dict[int, ConstraintFailed]:
    """Write the masks of `rows` to bits [rows, words]. Returns why a grammar failed, by row.

    The mask of a grammar that failed, and of a sequence that has ended, allows everything.
    """
    errors: dict[int, ConstraintFailed] = {}
    for place, row in enumerate(rows):
        sequence = sequences[row]
        bits[place] = -1
        if sequence.status is Status.FINISHED:
            continue
        try:
            # Made anew where a beam goes on from another's text.
            bits[place] = profile_of(sequence, vocab).allowed_bits(sequence)
        except ConstraintFailed as error:
            errors[row] = error
    return errors
