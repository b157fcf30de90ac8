"""The effect of one completion's settings on its logits, from counts that grow with the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from serving.core import Request, SamplingParams


class Adjustments:
    """Penalties, bias and grammar of one sequence. It looks at each token once, whenever it is next applied."""

    def __init__(self, request: Request, vocab: int) -> None:
        params = request.sampling
        self._params = params
        self._counts = _Counts() if _has_penalties(params) else None
        self._constraint = None if params.constraint is None else params.constraint.begin()
        bias = [(token, value) for token, value in params.logit_bias if token < vocab]
        self._bias_ids = torch.tensor([token for token, _ in bias], dtype=torch.int64)
        self._bias = torch.tensor([value for _, value in bias], dtype=torch.float32)
        self._seen = self._prompt = len(request.prompt_token_ids)
        if self._counts is not None and params.repetition_penalty != 1:
            self._counts.add(request.prompt_token_ids, 0)

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether these settings change logits at all."""
        return _has_penalties(params) or bool(params.logit_bias) or params.constraint is not None

    def apply(self, row: torch.Tensor, tokens: Sequence[int]) -> None:
        """Changes float32 logits [vocab] in place. tokens: prompt and everything generated. Raises
        ConstraintFailed."""
        fresh = tokens[self._seen :]
        self._seen = len(tokens)
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
    """Whether the argmax of the logits, as they are, is all that is asked: a runner may then take it itself."""
    return params.temperature == 0 and params.logprobs is None and not Adjustments.needed(params)


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
        """int64 ids and float32 counts, both [distinct]."""
        size = len(self._where)
        return self._ids[:size], self._counts[:size]


def _has_penalties(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1
