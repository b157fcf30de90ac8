"""Verification of drafts: rows are sampled in order, and no further than the first that differs from its draft.

Penalties, grammar, log-probabilities and the numbers that draw are then exactly what they would be without a draft. A
fixed draft loses nothing by it: a token is accepted with the probability that the model gives it, as in speculative
sampling (Leviathan et al., arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from serving import core
from serving.sampling.sampler import sample
from serving.steps import SampledToken


def verify(
    best: Sequence[int],
    logits: torch.Tensor,
    sequences: Sequence[core.Sequence],
    drafts: Sequence[tuple[int, ...]],
    special: Sequence[int],
) -> list[SampledToken]:
    """Return one answer for each sequence, with the tokens of its draft that the model chose in `before`.

    best: the argmax of each row, -1 where its logits are not finite
    logits: float32 [rows, vocab], overwritten; a sequence has one row, and one behind it for each token of its draft
    special: places of the sequences that the sampler decides on
    """
    if len(best) == len(sequences):
        out = [SampledToken(token if token >= 0 else None) for token in best]
        if special:
            rows = logits if len(special) == len(out) else logits[special]
            for place, token in zip(special, sample(rows, [sequences[place] for place in special]), strict=True):
                out[place] = token
        return out
    first = [0, *accumulate(1 + len(draft) for draft in drafts)]
    sampled = set(special)
    plain = {place: _walk(best, first[place], drafts[place]) for place in range(len(sequences)) if place not in sampled}
    plain |= _sample_in_turn(logits, sequences, drafts, first, special)
    return [plain[place] for place in range(len(sequences))]


def agreed(rows: Sequence[SampledToken], drafts: Sequence[tuple[int, ...]]) -> list[SampledToken]:
    """Return one answer for each draft, from rows that were all sampled at once as if the draft before them were right.

    rows: for each draft one, and one behind it for each of its tokens. What a row was sampled with depends on its
        position alone: no penalties, no grammar
    """
    if len(rows) == len(drafts):
        return list(rows)
    out, first = [], 0
    for draft in drafts:
        depth = 0
        while depth < len(draft) and rows[first + depth].token_id == draft[depth]:
            depth += 1
        out.append(replace(rows[first + depth], before=tuple(rows[first : first + depth])))
        first += 1 + len(draft)
    return out


def _walk(best: Sequence[int], row: int, draft: tuple[int, ...]) -> SampledToken:
    before = []
    for guess in draft:
        if best[row] != guess:
            break
        before.append(SampledToken(guess))
        row += 1
    return SampledToken(best[row] if best[row] >= 0 else None, before=tuple(before))


def _sample_in_turn(
    logits: torch.Tensor,
    sequences: Sequence[core.Sequence],
    drafts: Sequence[tuple[int, ...]],
    first: Sequence[int],
    places: Sequence[int],
) -> dict[int, SampledToken]:
    """Sample the next row of every sequence at once, until each has a token that its draft does not hold."""
    before: dict[int, list[SampledToken]] = {place: [] for place in places}
    out: dict[int, SampledToken] = {}
    while before:
        rows = [first[place] + len(chosen) for place, chosen in before.items()]
        ahead = [[token.token_id or 0 for token in chosen] for chosen in before.values()]
        answers = sample(logits[rows], [sequences[place] for place in before], ahead)
        for (place, chosen), token in zip(list(before.items()), answers, strict=True):
            depth, draft = len(chosen), drafts[place]
            if depth < len(draft) and token.token_id == draft[depth]:
                chosen.append(token)
            else:
                out[place] = replace(token, before=tuple(chosen))
                del before[place]
    return out
