"""The effect of one completion's settings on its logits, from counts that grow with the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from serving.core import Request, SamplingParams


class Adjustments:
    """Penalties, bias and grammar of one sequence. `apply` reads only the tokens since its previous call."""

    def __init__(self, request: Request, vocab: int) -> None:
        params = request.sampling
        self._params = params
        self._counts = _Counts() if params.penalises else None
        self._constraint = None if params.constraint is None else params.constraint.begin()
        bias = [(token, value) for token, value in params.logit_bias if token < vocab]
        self._bias_ids = torch.tensor([token for token, _ in bias], dtype=torch.int64)
        self._bias = torch.tensor([value for _, value in bias], dtype=torch.float32)
        self._seen = self._prompt = len(request.prompt_token_ids)
        if self._counts is not None and params.repetition_penalty != 1:
            self._counts.add(request.prompt_token_ids, 0)

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Return whether these settings change logits at all."""
        return params.penalises or bool(params.logit_bias) or params.constraint is not None

    def apply(self, row: torch.Tensor, tokens: Sequence[int], ahead: Sequence[int] = ()) -> None:
        """Change float32 logits [vocab] in place. Raises ConstraintFailed.

        tokens: the prompt and all generated tokens; ahead: generated tokens that come behind them
        """
        known = len(tokens)
        fresh = [*tokens[self._seen :], *ahead[max(0, self._seen - known) :]]
        self._seen = known + len(ahead)
        if self._counts is not None:
            self._counts.add(fresh, 1)
            self._penalize(row, self._counts)
        if len(self._bias_ids):
            row.index_add_(0, self._bias_ids.to(row.device), self._bias.to(row.device))
        if self._constraint is not None:
            self._constraint.accept(fresh)
            forbidden = torch.from_numpy(self._constraint.forbidden())
            row.masked_fill_(forbidden.to(row.device), -torch.inf)

    def _penalize(self, row: torch.Tensor, counts: _Counts) -> None:
        params = self._params
        ids, occurrences = (torch.from_numpy(part).to(row.device) for part in counts.arrays())
        values = row[ids]
        if params.repetition_penalty != 1:  # Keskar et al., arXiv 1909.05858
            penalty = params.repetition_penalty
            values = torch.where(values > 0, values / penalty, values * penalty)
        values -= params.frequency_penalty * occurrences + params.presence_penalty * (occurrences > 0)
        row[ids] = values


def is_plain(params: SamplingParams) -> bool:
    """Return whether the settings ask for the argmax of unchanged logits alone, so that a runner may compute it."""
    chosen_alone = params.temperature == 0 and params.logprobs is None and params.beam is None
    return chosen_alone and not Adjustments.needed(params)


class _Counts:
    """Distinct tokens and how often each was generated, in arrays that double."""

    def __init__(self) -> None:
        self._where: dict[int, int] = {}
        self._ids, self._counts = np.zeros(64, np.int64), np.zeros(64, np.float32)

    def add(self, tokens: Sequence[int], by: int) -> None:
        for token in tokens:
            at = self._where.setdefault(token, len(self._where))
            if at == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[at] = token
            self._counts[at] += by

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return int64 ids and float32 counts, both [distinct]."""
        size = len(self._where)
        return self._ids[:size], self._counts[:size]
