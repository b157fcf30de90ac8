"""Packing of rows that share a prompt prefix into one sequence.

All rows of a task start with the same system prompt. One sequence holds that prefix once, followed by every row's own
part (user text and answer). A block mask lets a row see the prefix and itself only, and its positions continue from
the prefix, so each row's hidden states equal those of the row run alone, at a fraction of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Encoded:
    """Token ids of one row: the prompt (with generation prompt) and the answer ending in the stop token."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Pack:
    """Model inputs of several rows in one sequence of T tokens.

    ``ids`` and ``positions`` are int64 ``[1, T]``; ``mask`` is bool ``[1, 1, T, T]``, True where a query (dim 2) sees
    a key (dim 3). ``at`` (int64 ``[A]``) are the places whose hidden state predicts ``targets`` (int64 ``[A]``);
    ``row`` (int64 ``[A]``) says which row each of them belongs to.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    at: torch.Tensor
    targets: torch.Tensor
    row: torch.Tensor


def shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return the length of the common prefix, leaving every prompt at least one token of its own."""
    limit = min(len(prompt) for prompt in prompts) - 1
    for i in range(limit):
        if any(prompt[i] != prompts[0][i] for prompt in prompts):
            return i
    return limit


def pack(rows: Sequence[Encoded]) -> Pack:
    """Pack ``rows`` behind their common prefix. Raises ValueError when there are none."""
    if not rows:
        raise ValueError("nothing to pack")
    shared = shared_length([row.prompt for row in rows])
    ids = list(rows[0].prompt[:shared])
    positions = list(range(shared))
    owner = [-1] * shared
    at: list[int] = []
    targets: list[int] = []
    row_of: list[int] = []
    for number, row in enumerate(rows):
        own = [*row.prompt[shared:], *row.answer[:-1]]
        # The last prompt token predicts the first answer token, and so on to the stop token.
        first = len(ids) + len(row.prompt) - shared - 1
        at.extend(range(first, first + len(row.answer)))
        targets.extend(row.answer)
        row_of.extend([number] * len(row.answer))
        positions.extend(range(shared, shared + len(own)))
        owner.extend([number] * len(own))
        ids.extend(own)
    owners = torch.tensor(owner)
    order = torch.arange(len(ids))
    visible = (owners[None, :] == -1) | (owners[None, :] == owners[:, None])
    mask = visible & (order[None, :] <= order[:, None])
    return Pack(
        ids=torch.tensor([ids]),
        positions=torch.tensor([positions]),
        mask=mask[None, None],
        at=torch.tensor(at),
        targets=torch.tensor(targets),
        row=torch.tensor(row_of),
    )
