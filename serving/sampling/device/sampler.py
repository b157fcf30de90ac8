"""One token per row of a step's logits, chosen on the device: `prepare` on the host, `launch`, then `answers`.

The tokens stay on the device at a fixed address, where the next step's rows in flight read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import torch

from serving.core import Sequence, TokenLogprob
from serving.errors import ConstraintFailed
from serving.kernels.triton import sample as layout
from serving.kernels.triton.sample import PART, Rows, choose, make_scan, scan_rows
from serving.kernels.triton.sample_adjust import Biases, Changes, adjust, count_tokens
from serving.kernels.triton.sample_cut import CANDIDATES, OCTAVES, choose_cut, make_candidates
from serving.kernels.triton.sample_wide import choose_wide
from serving.kernels.upload import StepBuffer, upload
from serving.sampling.candidates import Candidate
from serving.sampling.device.counts import Fill, TokenCounts
from serving.sampling.device.settings import Int32s, Profile, masks_of, profile_of
from serving.sampling.logprobs import MAX_LOGPROBS
from serving.steps import SampledToken

# Rows that are sorted at once: 20 MB for a vocabulary of 150,000.
_SORTED_AT_ONCE = 8
_LISTS = ("adjusted", "cut", "counted")


def sampler_bytes(vocab: int, max_samples: int) -> int:
    """Return the device memory of a `DeviceSampler`: for each sample two rows of 4 bytes per token, and lists."""
    parts = -(-vocab // PART)
    return max_samples * (2 * 4 * vocab + parts * (12 + 4 * PART // layout.BLOCK + 8 * OCTAVES) + 8 * CANDIDATES)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """The sequences of a step and what is the same in all steps with the same ones.

    rows by what is done with them: drawn, adjusted, cut, counted, masked, reported, searched (those of beam searches)
    biases, reported_ids, searched_ids: on the device, None where no row has any
    candidates: the most that a searched row reports
    """

    sequences: tuple[Sequence, ...]
    drawn: list[int]
    lists: dict[str, list[int]]
    masked: list[int]
    biases: Biases | None
    reported: list[int]
    reported_ids: torch.Tensor | None
    searched: list[int]
    searched_ids: torch.Tensor | None
    candidates: int


@dataclass(slots=True, eq=False)
class Work:
    """The sampling of one step. `answers` may be read once the step's event is done."""

    batch: _Batch
    fills: list[Fill]
    masks: Int32s | None
    errors: dict[int, ConstraintFailed]
    new_settings: bool
    tokens: torch.Tensor
    logprobs: tuple[torch.Tensor, ...] = field(default=())
    candidates: tuple[torch.Tensor, ...] = field(default=())

    def answers(self) -> list[SampledToken]:
        """Return one answer per sequence, in their order: a token, or the reason why there is none."""
        tokens = self.tokens[: len(self.batch.sequences)].tolist()
        out = [SampledToken(token if token >= 0 else None) for token in tokens]
        if self.logprobs:
            own, values, ids = (part.tolist() for part in self.logprobs)
            for place, row in enumerate(self.batch.reported):
                if tokens[row] >= 0:
                    count = self.batch.sequences[row].request.sampling.logprobs
                    top = tuple(zip(ids[place][:count], values[place][:count], strict=True))
                    out[row] = SampledToken(tokens[row], TokenLogprob(tokens[row], own[place][0], top))
        if self.candidates:
            values, ids = (part.tolist() for part in self.candidates)
            for place, row in enumerate(self.batch.searched):
                found = zip(ids[place], values[place], strict=True)
                out[row] = replace(out[row], candidates=self._of_group(row, found))
        for row, error in self.errors.items():
            out[row] = SampledToken(None, error=error)
        return out

    def _of_group(self, row: int, found: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """Return as many of a row's candidates as its group wants, without those that its grammar forbids."""
        group = self.batch.sequences[row].group
        assert group is not None
        return tuple(pair for pair in islice(found, group.candidates) if math.isfinite(pair[1]))


class DeviceSampler:
    """Samples up to `max_samples` rows a step, on the current stream; at most two works may be unread.

    tokens: int32 [max_samples], the token of each row of the last launch, -1 where there is none
    """

    def __init__(self, vocab: int, max_samples: int, device: torch.device) -> None:
        self._vocab, self._device = vocab, device
        self.tokens = torch.zeros(max_samples, dtype=torch.int32, device=device)
        self._adjusted = torch.empty(max_samples, vocab, dtype=torch.float32, device=device)
        self._scan = make_scan(max_samples, vocab, device)
        self._candidates = make_candidates(self._scan)
        # Where no row has a grammar: integers that change from step to step would be compiled anew.
        self._no_masks = torch.zeros(1, -(-vocab // 32), dtype=torch.int32, device=device)
        self._counts = TokenCounts(max_samples, vocab, device)
        shapes = {"settings": (max_samples, layout.COLUMNS), **dict.fromkeys(_LISTS, (max_samples,))}
        self._settings = StepBuffer(shapes, device)
        # float64 in two words each.
        self._points = StepBuffer({"points": (max_samples, 2)}, device)
        pinned = device.type == "cuda"
        self._answers = [torch.zeros(max_samples, dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        self._batch: _Batch | None = None

    def prepare(self, sequences: tuple[Sequence, ...], ends: Seq[int]) -> Work:
        """Gather the settings of a step's rows on the host. The host knows all tokens of a sequence with a grammar.

        ends: how many tokens each sequence has before the one that is sampled, those in flight included
        """
        batch, last = self._batch, self._batch
        if batch is None or batch.sequences != sequences:
            batch = self._batch = self._compose(sequences)
        counted = batch.lists["counted"]
        fills = self._counts.prepare([sequences[row] for row in counted], [ends[row] for row in counted])
        if batch is not last:
            self._write(batch)
        if batch.drawn:
            points = self._points.begin()["points"].view(np.float64)
            for row in batch.drawn:
                points[row] = sequences[row].uniform(ends[row] - sequences[row].prompt_tokens)
        masks, errors = None, {}
        if batch.masked:
            masks = np.empty((len(batch.masked), self._no_masks.shape[1]), np.int32)
            errors = masks_of(batch.masked, sequences, masks, self._vocab)
        self._answers.reverse()
        return Work(batch, fills, masks, errors, batch is not last, self._answers[0])

    def launch(self, work: Work, logits: torch.Tensor) -> None:
        """Start sampling from logits [rows, vocab] of any floating type, and the copies of the answers to the host."""
        batch, count = work.batch, len(work.batch.sequences)
        if work.new_settings:
            self._settings.upload()
        if batch.drawn:
            self._points.upload()
        for fill in work.fills:
            self._counts.apply(fill)
        t, points = self._settings.tensors, self._points.tensors["points"].view(torch.float64)
        rows = Rows(logits, logits.stride(0), self._adjusted, self._adjusted.stride(0), self._vocab, t["settings"])
        lists = {name: t[name][: len(batch.lists[name])] for name in _LISTS}
        if batch.lists["adjusted"]:
            masks = self._no_masks if work.masks is None else upload(work.masks, self._device)
            adjust(rows, Changes(self._counts.data, masks, masks.shape[1]), lists["adjusted"], batch.biases)
        scan_rows(rows, self._scan, count)
        choose(rows, self._scan, points, self.tokens, count)
        if batch.lists["cut"]:
            choose_cut(rows, self._scan, self._candidates, points, lists["cut"], self.tokens)
            choose_wide(rows, self._scan, self._candidates, points, lists["cut"], self.tokens)
        if batch.lists["counted"]:
            count_tokens(t["settings"], self._counts.data, lists["counted"], self.tokens)
        work.tokens.copy_(self.tokens, non_blocking=True)
        if batch.reported_ids is not None:
            work.logprobs = self._report(logits, batch.reported_ids)
        if batch.searched_ids is not None:
            work.candidates = self._search(logits, batch)

    def _report(self, logits: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Start the copies of the rows' log-probabilities, before any setting changed them: of the tokens [rows, 1],
        and values and ids [rows, MAX_LOGPROBS] of the likeliest."""
        raw = torch.log_softmax(logits[rows].float(), -1)
        own = raw.gather(1, self.tokens[rows].clamp(min=0).long()[:, None])
        best = raw.topk(min(MAX_LOGPROBS, self._vocab), -1)
        return self._to_host(own, best.values, best.indices)

    def _search(self, logits: torch.Tensor, batch: _Batch) -> tuple[torch.Tensor, ...]:
        """Start the copies of values and ids [rows, candidates] of the likeliest tokens of searched rows, equal ones in
        order of their ids; -inf where a grammar forbids a token."""
        assert batch.searched_ids is not None
        found = []
        for first in range(0, len(batch.searched), _SORTED_AT_ONCE):
            raw = torch.log_softmax(logits[batch.searched_ids[first : first + _SORTED_AT_ONCE]].float(), -1)
            for place, row in enumerate(batch.searched[first : first + _SORTED_AT_ONCE]):
                if row in batch.masked:
                    raw[place].masked_fill_(self._adjusted[row] == -torch.inf, -torch.inf)
            found.append([part[:, : batch.candidates] for part in raw.sort(dim=-1, descending=True, stable=True)])
        return self._to_host(*map(torch.cat, zip(*found, strict=True)))

    def _to_host(self, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Start the copies of these to memory of the host, which is pinned where that matters."""
        pinned = self._device.type == "cuda"
        out = tuple(torch.empty(part.shape, dtype=part.dtype, pin_memory=pinned) for part in parts)
        for host, part in zip(out, parts, strict=True):
            host.copy_(part, non_blocking=True)
        return out

    def _compose(self, sequences: tuple[Sequence, ...]) -> _Batch:
        profiles = [profile_of(sequence, self._vocab) for sequence in sequences]
        rows = list(enumerate(profiles))
        reported = [row for row, s in enumerate(sequences) if s.request.sampling.logprobs is not None]
        groups = {row: s.group for row, s in enumerate(sequences) if s.group is not None}
        return _Batch(
            sequences,
            drawn=[row for row, profile in rows if profile.drawn],
            lists={name: [row for row, profile in rows if getattr(profile, name)] for name in _LISTS},
            masked=[row for row, profile in rows if profile.grammar is not None],
            biases=self._biases(profiles),
            reported=reported,
            reported_ids=upload(np.array(reported, np.int64), self._device) if reported else None,
            searched=list(groups),
            searched_ids=upload(np.array(list(groups), np.int64), self._device) if groups else None,
            candidates=max((group.candidates for group in groups.values()), default=0),
        )

    def _biases(self, profiles: list[Profile]) -> Biases | None:
        biased = [(row, profile.biases) for row, profile in enumerate(profiles) if profile.biases]
        if not biased:
            return None
        arrays = (
            np.array([row for row, _ in biased], np.int32),
            np.cumsum([len(biases) for _, biases in biased], dtype=np.int32),
            np.array([token for _, biases in biased for token in biases], np.int32),
            np.array([value for _, biases in biased for value in biases.values()], np.float32),
        )
        return Biases(*(upload(array, self._device) for array in arrays))

    def _write(self, batch: _Batch) -> None:
        """Write a new batch's settings for `launch`."""
        arrays = self._settings.begin()
        table = arrays["settings"]
        for row, sequence in enumerate(batch.sequences):
            table[row] = profile_of(sequence, self._vocab).row
        for row in batch.lists["counted"]:
            table[row, layout.SLOT] = self._counts.slot(batch.sequences[row])
        table[batch.masked, layout.MASK] = range(len(batch.masked))
        for name in _LISTS:
            arrays[name][: len(batch.lists[name])] = batch.lists[name]
