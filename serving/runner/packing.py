"""From a step plan to flat arrays, for any device: rows are tokens; a chunk's rows are contiguous, in plan order."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from serving.core import Sequence as Running
from serving.sampling import is_plain
from serving.steps import Chunk

Int32s = npt.NDArray[np.int32]

# Stands for a token that the previous step samples and that the host does not know yet.
IN_FLIGHT = -1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Wanted:
    """The rows of a step whose hidden states are wanted after the forward pass, and the sequences that want them.

    sample_rows: first the rows of `sampling`, then of `embedding`, then of `scoring`
    scoring: sequences that report log-probabilities of their prompts, and the positions to report
    drafts: one for each of `sampling`: it has a row for each token of its draft behind its first
    """

    sample_rows: array[int]
    sampling: tuple[Running, ...]
    embedding: tuple[Running, ...]
    scoring: tuple[tuple[Running, range], ...]
    drafts: tuple[tuple[int, ...], ...] = ()

    @property
    def samples(self) -> int:
        """Return how many of `sample_rows` belong to `sampling`."""
        return len(self.sampling) + sum(map(len, self.drafts))

    def special(self) -> list[int]:
        """Return the places in `sampling` that the sampler decides on: a runner takes the argmax of the others."""
        return [place for place, sequence in enumerate(self.sampling) if not is_plain(sequence.request.sampling)]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedStep(Wanted):
    """One step's work in int32 arrays of Python, whose addresses are quick to get and which numpy reads without a copy.

    token_ids: [rows]; IN_FLIGHT where the token is not known on the host
    chunk_rows: [chunks + 1], the first row of each chunk and the number of rows
    chunk_starts: [chunks], the position of each chunk's first token
    chunk_tables: [chunks + 1], where each chunk's block ids begin in `blocks`, and where they end
    blocks: the blocks that hold each chunk's sequence up to the chunk's end
    """

    token_ids: array[int]
    chunk_rows: array[int]
    chunk_starts: array[int]
    chunk_tables: array[int]
    blocks: array[int]

    @property
    def rows(self) -> int:
        return len(self.token_ids)


def pack_step(chunks: Sequence[Chunk], block_size: int) -> PackedStep:
    """Pack the chunks of a plan, at least one, in their order."""
    tokens, rows, starts = array("i"), array("i", (0,)), array("i")
    tables, blocks = array("i", (0,)), array("i")
    sample_rows, embed_rows, score_rows = array("i"), array("i"), array("i")
    sampling: list[Running] = []
    drafts: list[tuple[int, ...]] = []
    embedding: list[Running] = []
    scoring: list[tuple[Running, range]] = []
    for chunk in chunks:
        sequence, start, end = chunk.sequence, chunk.start, chunk.start + chunk.count
        tokens.extend(sequence.tokens[start : chunk.known_end])
        tokens.extend(chunk.draft)
        rows.append(rows[-1] + chunk.count)
        if len(tokens) < rows[-1]:
            tokens.extend([IN_FLIGHT] * (rows[-1] - len(tokens)))
        starts.append(start)
        blocks.extend(sequence.blocks[: -(-end // block_size)])
        tables.append(len(blocks))
        if chunk.samples:
            if sequence.request.embed:
                embed_rows.append(rows[-1] - 1)
                embedding.append(sequence)
            else:
                sample_rows.extend(range(rows[-1] - 1 - len(chunk.draft), rows[-1]))
                sampling.append(sequence)
                drafts.append(chunk.draft)
        if positions := sequence.unscored(start, end):
            score_rows.extend(rows[-1] - end + position for position in positions)
            scoring.append((sequence, positions))
    sample_rows.extend(embed_rows)
    sample_rows.extend(score_rows)
    return PackedStep(
        token_ids=tokens,
        chunk_rows=rows,
        chunk_starts=starts,
        chunk_tables=tables,
        blocks=blocks,
        sample_rows=sample_rows,
        sampling=tuple(sampling),
        embedding=tuple(embedding),
        scoring=tuple(scoring),
        drafts=tuple(drafts),
    )
