"""How likely tokens were, and what else was: of those that are sampled, and of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from serving import core
from serving.core import TokenLogprob

# Reported alternatives are at most this many. Always this many are searched, so that the order of equal values cannot
# depend on what another row asked for.
_MAX_LOGPROBS = 20
# Rows of a prompt whose logits exist at once: 13 MB of a vocabulary of 50,000.
_AT_ONCE = 64


def token_logprobs(raw: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """For each row of log-probabilities [rows, vocab] what they say of its token, beside `counts` alternatives."""
    own = raw.gather(1, torch.tensor(tokens, device=raw.device)[:, None])[:, 0].tolist()
    best = raw.topk(min(_MAX_LOGPROBS, raw.shape[1]), -1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprob(token, own[row], tuple(zip(ids[row][:count], values[row][:count], strict=True)))
        for row, (token, count) in enumerate(zip(tokens, counts, strict=True))
    ]


def score(
    scoring: Sequence[tuple[core.Sequence, range]],
    hidden: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Adds to each sequence's `scored` what the rows of its prompt at these positions say of the tokens after them.

    hidden: [rows, hidden], the sequences' rows one after another; head: some of them to logits [rows, vocab]
    """
    first = 0
    for sequence, positions in scoring:
        count = sequence.request.sampling.prompt_logprobs or 0
        for at in range(0, len(positions), _AT_ONCE):
            some = positions[at : at + _AT_ONCE]
            raw = torch.log_softmax(head(hidden[first + at : first + at + len(some)]).float(), -1)
            entries = token_logprobs(raw, sequence.tokens[some.start + 1 : some.stop + 1], [count] * len(some))
            # Where steps overlap, one that began anew after a preemption may report what the one before it has.
            sequence.scored += entries[len(sequence.scored) - some.start :]
        first += len(positions)
