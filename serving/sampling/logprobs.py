"""Log-probabilities of sampled tokens and of prompt tokens, with the likeliest alternatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from serving import core
from serving.core import TokenLogprob

# The most alternatives that are reported. This many are always searched, so that the order of equal values cannot
# depend on another row's request.
MAX_LOGPROBS = 20
# Prompt rows whose logits exist at once: 13 MB for a vocabulary of 50,000.
_AT_ONCE = 64


def token_logprobs(raw: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """Return, for each row of log-probabilities [rows, vocab], its token's and those of `counts` alternatives."""
    own = raw.gather(1, torch.tensor(tokens, device=raw.device)[:, None])[:, 0].tolist()
    best = raw.topk(min(MAX_LOGPROBS, raw.shape[1]), -1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprob(token, own[row], tuple(zip(ids[row][:count], values[row][:count], strict=True)))
        for row, (token, count) in enumerate(zip(tokens, counts, strict=True))
    ]


def score(
    scoring: Sequence[tuple[core.Sequence, range]],
    hidden: torch.Tensor,
    head: Callable[[core.Sequence, torch.Tensor], torch.Tensor],
) -> None:
    """Append to each sequence's `scored` the log-probabilities of the tokens that follow these positions of its prompt.

    hidden: [rows, hidden], the sequences' rows one after another
    head: maps rows of `hidden` of a sequence to logits [rows, vocab]
    """
    first = 0
    for sequence, positions in scoring:
        count = sequence.request.sampling.prompt_logprobs or 0
        for at in range(0, len(positions), _AT_ONCE):
            some = positions[at : at + _AT_ONCE]
            raw = torch.log_softmax(head(sequence, hidden[first + at : first + at + len(some)]).float(), -1)
            entries = token_logprobs(raw, sequence.tokens[some.start + 1 : some.stop + 1], [count] * len(some))
            # Where steps overlap, a step after a preemption may repeat positions that the previous step reported.
            sequence.scored += entries[len(sequence.scored) - some.start :]
        first += len(positions)
