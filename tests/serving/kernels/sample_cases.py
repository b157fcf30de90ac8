"""Tokens chosen on the device against `serving.sampling.sample`. A program: on CUDA, or under the interpreter."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from serving.core import AdapterRef, Request, SamplingParams, Status
from serving.core import Sequence as Running
from serving.errors import ConstraintFailed
from serving.sampling import sample
from serving.sampling.device import DeviceSampler
from serving.steps import SampledToken
from tests.serving.scheduler.fakes import PlainText

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# A draw that is this near to the edge between two tokens may fall on either side: sums are taken in another order.
EDGE = 1e-5


class Multiples:
    """A grammar of every `step`-th token; it fails after token 99."""

    def __init__(self, vocab: int, step: int) -> None:
        self._forbidden = np.arange(vocab) % step != 0

    def begin(self) -> Multiples:
        return self

    begin_draft = begin

    def forced(self) -> tuple[int, ...]:
        return ()

    def accept(self, token_ids: Sequence[int]) -> None:
        if 99 in token_ids:
            raise ConstraintFailed("the grammar is exhausted")

    def forbidden(self) -> np.ndarray:
        return self._forbidden

    def allowed_bits(self) -> np.ndarray:
        allowed = np.zeros(-(-len(self._forbidden) // 32) * 32, np.bool_)
        allowed[: len(self._forbidden)] = ~self._forbidden
        return np.packbits(allowed, bitorder="little").view(np.int32)


class Fixed(random.Random):
    """Always the same number."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self.number = number

    def random(self) -> float:
        return self.number


def running(point: float, prompt: Iterable[int] = (), output: Iterable[int] = (), **settings: Any) -> Running:
    request = Request("r", "t", "s", AdapterRef(), tuple(prompt), SamplingParams(**settings), 100)
    return Running(request, 0.0, [*prompt, *output], PlainText(), Fixed(point))


def choose(logits: torch.Tensor, sequences: Sequence[Running], sampler: DeviceSampler | None = None) -> Any:
    """Return the device's answers for logits [rows, vocab]."""
    sampler = sampler or DeviceSampler(logits.shape[1], len(sequences), DEVICE)
    work = sampler.prepare(tuple(sequences), [len(sequence.tokens) for sequence in sequences])
    sampler.launch(work, logits.to(DEVICE))
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return work.answers()


def agree(logits: torch.Tensor, rows: list[dict[str, Any]], points: Sequence[float]) -> tuple[int, int]:
    """Compare the tokens of rows with these settings, each drawn at its point. Returns how many were compared, and how
    many were not because the reference itself changes within EDGE of the point."""
    found = choose(logits, [running(point, **row) for point, row in zip(points, rows, strict=True)])
    near = [
        [answer.token_id for answer in sample(logits.float(), [running(p, **row) for p, row in moved])]
        for moved in (
            [(min(max(point + by, 0.0), 1 - 2**-53), row) for point, row in zip(points, rows, strict=True)]
            for by in (-EDGE, 0.0, EDGE)
        )
    ]
    compared = 0
    for answer, *expected in zip(found, *near, strict=True):
        if len(set(expected)) == 1:
            compared += 1
            assert answer.token_id == expected[0], (rows, points, [a.token_id for a in found], near)
    return compared, len(rows) - compared


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"temperature": 0.6, "top_p": 0.9},
    {"top_k": 5},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.01},
    {"min_p": 0.05},
    {"top_p": 1e-6},
    {"temperature": 1e-6},
]
WIDE: list[dict[str, Any]] = [
    {"temperature": 4.0, "top_p": 0.97},
    {"temperature": 4.0, "top_k": 2500, "top_p": 0.9},
    {"temperature": 4.0, "top_k": 1500, "min_p": 0.02},
]


def every_setting_draws_the_reference_s_token() -> None:
    generator = torch.Generator().manual_seed(1)
    compared = skipped = 0
    # One part of the scan in part and one in full; two parts, the second with a single token.
    for vocab, dtype in ((300, torch.float32), (4096, torch.bfloat16), (4097, torch.float32)):
        logits = (torch.randn(len(SETTINGS), vocab, generator=generator) * 3).to(dtype)
        points = torch.rand(len(SETTINGS), generator=generator).double().tolist()
        added = agree(logits, SETTINGS, points)
        compared, skipped = compared + added[0], skipped + added[1]
    assert skipped <= compared // 10


def a_cut_that_keeps_more_tokens_than_are_listed_draws_the_reference_s_token() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(len(WIDE), 9001, generator=generator) * 2
    logits[2] = logits[2].round()  # ties at the cut: the first in order of ids are kept
    compared, skipped = agree(logits, WIDE, [0.3, 0.9999, 0.6])
    assert compared + skipped == len(WIDE) and compared >= 2


def ties_and_edges_are_decided_as_the_reference_decides() -> None:
    vocab = 600
    flat, one, pair = torch.zeros(vocab), torch.full((vocab,), float("-inf")), torch.zeros(vocab)
    one[417] = -3.0
    pair[[5, 300]] = 8.0
    rows: list[tuple[torch.Tensor, dict[str, Any], float]] = [
        (flat, {"temperature": 0}, 0.0),
        (flat, {}, 1 - 2**-53),
        (flat, {"top_k": 7}, 0.99),
        (flat, {"top_p": 0.25}, 0.999),
        (flat, {"top_p": 0.5, "top_k": 8}, 0.9),
        (flat, {"min_p": 1.0}, 0.5),
        (flat, {"top_k": 2000}, 0.5004),
        (one, {}, 0.7),
        (one, {"top_p": 0.3, "top_k": 3, "min_p": 0.2}, 0.7),
        (pair, {"temperature": 0}, 0.0),
        (pair, {"top_k": 1}, 0.9),
        (pair, {"top_k": 2}, 0.9),
        (pair, {"top_p": 0.45}, 0.9),
        (pair, {"min_p": 0.5}, 0.1),
    ]
    logits = torch.stack([row for row, _, _ in rows])
    compared, skipped = agree(logits, [settings for _, settings, _ in rows], [point for *_, point in rows])
    assert compared >= 12, skipped


def a_row_that_is_not_finite_has_no_token_and_changes_no_other() -> None:
    logits = torch.randn(8, 5000, generator=torch.Generator().manual_seed(3))
    logits[0, 4999] = float("nan")
    logits[1, 3] = float("inf")
    logits[2] = float("-inf")
    logits[3, 4097] = float("nan")
    grammar = Multiples(5000, 2)  # hides the NaN
    settings = [{"temperature": 0}, {}, {"top_k": 4}, {"constraint": grammar}, {}, {"top_k": 4}, {"top_p": 0.5}, {}]
    rows = [running(0.4, **row) for row in settings]
    found = [answer.token_id for answer in choose(logits, rows)]
    assert found[:4] == [None] * 4
    assert found[4:] == [answer.token_id for answer in sample(logits[4:].clone(), rows_again(settings[4:]))]


def rows_again(settings: list[dict[str, Any]]) -> list[Running]:
    return [running(0.4, **row) for row in settings]


ADJUSTING: list[dict[str, Any]] = [
    {"temperature": 0, "repetition_penalty": 1.8},
    {"temperature": 0, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"presence_penalty": -1.5, "repetition_penalty": 0.7},
    {"temperature": 0, "logit_bias": ((8, 6.0), (299, 7.5), (7, -100.0), (5000, 9.0), (8, 0.25))},
    {"logit_bias": ((3, 5.0),), "frequency_penalty": 1.0, "top_k": 3},
    {"constraint": Multiples(300, 7), "temperature": 0},
    {"constraint": Multiples(300, 3), "logit_bias": ((4, 50.0), (6, 4.0)), "top_p": 0.8, "presence_penalty": 0.5},
]


def penalties_biases_and_grammars_change_logits_as_in_the_reference() -> None:
    generator = torch.Generator().manual_seed(4)
    prompt, output = [8, 9, 10, 8, 250], [9, 9, 12, 250, 6]
    # Both of the same sequences go on for some steps, so that counts grow on the device and on the host.
    ours, theirs = ([running(0.35, prompt, output, **row) for row in ADJUSTING] for _ in range(2))
    sampler = DeviceSampler(300, len(ADJUSTING), DEVICE)
    for _ in range(3):
        logits = torch.randn(len(ADJUSTING), 300, generator=generator) * 2
        found, expected = choose(logits, ours, sampler), sample(logits.clone(), theirs)
        assert [answer.token_id for answer in found] == [answer.token_id for answer in expected]
        for left, right, answer in zip(ours, theirs, found, strict=True):
            left.tokens.append(answer.token_id)
            right.tokens.append(answer.token_id)


def counts_follow_sequences_through_changing_batches_and_too_few_slots() -> None:
    generator = torch.Generator().manual_seed(5)
    penalised = {"temperature": 0, "frequency_penalty": 3.0, "repetition_penalty": 1.5}
    ours, theirs = ([running(0.0, [n, n + 1], **penalised) for n in range(5)] for _ in range(2))
    sampler = DeviceSampler(40, 2, DEVICE)  # two slots for five sequences
    for batch in ((0, 1), (1, 0), (2, 3), (0, 4), (4,), (1, 2), (2, 1)):
        logits = torch.randn(len(batch), 40, generator=generator)
        found = choose(logits, [ours[n] for n in batch], sampler)
        expected = sample(logits.clone(), [theirs[n] for n in batch])
        assert [answer.token_id for answer in found] == [answer.token_id for answer in expected], batch
        for n, answer in zip(batch, found, strict=True):
            ours[n].tokens.append(answer.token_id)
            theirs[n].tokens.append(answer.token_id)
        if batch == (4,):
            ours[4].status = Status.FINISHED


def log_probabilities_are_the_model_s_own_with_twenty_alternatives_at_most() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(6)) * 2
    settings: list[dict[str, Any]] = [
        {"temperature": 0, "logprobs": 20, "logit_bias": ((5, 100.0),)},
        {},
        {"logprobs": 0, "top_k": 5},
        {"logprobs": 3},
    ]
    found, expected = choose(logits, rows_again(settings)), sample(logits.clone(), rows_again(settings))
    for left, right in zip(found, expected, strict=True):
        assert left.token_id == right.token_id and (left.logprob is None) == (right.logprob is None)
        if left.logprob is not None:
            assert abs(left.logprob.logprob - right.logprob.logprob) < 1e-4
            assert [token for token, _ in left.logprob.top] == [token for token, _ in right.logprob.top]
    assert found[0].token_id == 5 and len(found[0].logprob.top) == 20 and found[2].logprob.top == ()


def a_grammar_that_fails_fails_alone() -> None:
    failing = {"constraint": Multiples(300, 2), "temperature": 0}
    rows = [running(0.5, output=[99], **failing), running(0.5, output=[98], **failing), running(0.5, temperature=0)]
    logits = torch.zeros(3, 300)
    logits[:, 17] = 5.0
    found: list[SampledToken] = choose(logits, rows)
    assert isinstance(found[0].error, ConstraintFailed) and found[0].token_id is None
    assert [answer.token_id for answer in found[1:]] == [0, 17]


CASES = (
    every_setting_draws_the_reference_s_token,
    a_cut_that_keeps_more_tokens_than_are_listed_draws_the_reference_s_token,
    ties_and_edges_are_decided_as_the_reference_decides,
    a_row_that_is_not_finite_has_no_token_and_changes_no_other,
    penalties_biases_and_grammars_change_logits_as_in_the_reference,
    counts_follow_sequences_through_changing_batches_and_too_few_slots,
    log_probabilities_are_the_model_s_own_with_twenty_alternatives_at_most,
    a_grammar_that_fails_fails_alone,
)

if __name__ == "__main__":
    with torch.inference_mode():
        for case in CASES:
            case()
            print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
