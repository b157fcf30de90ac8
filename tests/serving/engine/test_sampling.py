"""Drawing tokens: seeds, nucleus, logprobs, stop strings through the whole engine."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.errors import ConstraintFailed
from serving.sampling import sample
from serving.sampling.draw import _from_wide
from tests.serving.engine.test_parity import prompts
from tests.serving.harness import running
from tests.serving.scheduler.fakes import PlainText
from tests.serving.tiny import Tiny


def sequence(seed: int = 0, prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **settings: Any) -> Sequence:
    request = Request("r", "t", "s", AdapterRef(), prompt, SamplingParams(**settings), 100)
    return Sequence(request, 0.0, [*prompt, *output], PlainText(), random.Random(seed))


def draw(logits: torch.Tensor, seed: int = 0, **settings: Any) -> int | None:
    return sample(logits[None].clone(), [sequence(seed, **settings)])[0].token_id


def test_temperature_zero_is_argmax() -> None:
    assert draw(torch.tensor([0.0, 3.0, 2.9]), temperature=0) == 1


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    counts = Counter(draw(probs.log(), seed) for seed in range(4000))
    for token, p in enumerate(probs.tolist()):
        assert abs(counts[token] / 4000 - p) < 0.03


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
    assert {draw(logits, seed, top_p=0.75) for seed in range(300)} == {1, 3}
    assert {draw(logits, seed, top_p=0.01) for seed in range(50)} == {1}


def test_a_flat_distribution_wider_than_the_first_guess_is_sorted_whole() -> None:
    tokens = {draw(torch.zeros(2000), seed, top_p=0.9) for seed in range(400)}
    assert len(tokens) > 300


def test_tiny_temperatures_do_not_overflow() -> None:
    assert draw(torch.tensor([-1e4, 1e4, 0.0]), temperature=1e-5) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_gets_no_token_and_spoils_no_other(bad: float) -> None:
    logits = torch.tensor([[0.0, bad, 1.0], [0.0, 5.0, 1.0]])
    out = sample(logits, [sequence(temperature=0), sequence(temperature=0)])
    assert [token.token_id for token in out] == [None, 1]


def test_logprobs_are_of_the_unscaled_distribution() -> None:
    probs = torch.tensor([0.7, 0.2, 0.1])
    out = sample(probs.log()[None], [sequence(temperature=0, logprobs=2)])[0]
    assert out.logprob is not None
    assert out.logprob.logprob == pytest.approx(probs[0].log().item())
    assert [token for token, _ in out.logprob.top] == [0, 1]


def test_a_flat_distribution_is_drawn_from_every_block_of_the_vocabulary() -> None:
    tokens = [draw(torch.zeros(1000), seed) for seed in range(2000)]
    counts = Counter((token or 0) // 250 for token in tokens)
    assert all(abs(counts[quarter] / 2000 - 0.25) < 0.05 for quarter in range(4)) and max(tokens) > 990


def test_top_k_min_p_and_top_p_cut_one_after_the_other() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert {draw(logits, seed, top_k=2) for seed in range(200)} == {0, 1}
    assert {draw(logits, seed, min_p=0.45) for seed in range(200)} == {0, 1, 2}
    # The first of the two tokens that top-k leaves holds 4/7 of the mass.
    assert {draw(logits, seed, top_k=2, top_p=0.57) for seed in range(200)} == {0}
    assert {draw(logits, seed, top_k=2, top_p=0.6) for seed in range(200)} == {0, 1}
    assert len({draw(torch.zeros(2000), seed, top_k=600) for seed in range(2000)}) > 500


@given(
    st.integers(0, 2**31),
    st.sampled_from([300, 1000, 5000]),
    st.floats(0.3, 1, exclude_max=True),
    st.sampled_from([0, 0, 257, 400, 900]),
    st.sampled_from([0.0, 0.0, 1e-4]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_wide_cut_keeps_what_sorting_everything_would(
    seed: int, vocab: int, top_p: float, top_k: int, min_p: float, ties: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocab, generator=generator)
    probs = torch.softmax(logits.round() if ties else logits, -1)
    params = SamplingParams(top_p=top_p, top_k=top_k, min_p=min_p)
    values, ids = probs.sort(descending=True, stable=True)
    kept, before, mass = [], 0.0, float(values[: top_k or vocab].double().sum())
    for rank, (value, token) in enumerate(zip(values.double().tolist(), ids.tolist(), strict=True)):
        edge = abs(before - top_p * mass) < 1e-9  # sums in another order may differ there
        if (top_k and rank >= top_k) or before >= top_p * mass or value < min_p * float(values[0].double()) or edge:
            break
        kept.append(token)
        before += value
    cumulative = probs[sorted(kept)].double().cumsum(0)
    points = torch.tensor([0.0, 0.25, 0.5, 0.75, 0.999], dtype=torch.float64)
    drawn = [int(_from_wide(probs, point[None], params)[0]) for point in points]
    assert len({*drawn} - {*kept}) <= (1 if edge else 0)
    for point, token in zip(points.tolist(), drawn, strict=True):
        expected = sorted(kept)[int(torch.searchsorted(cumulative, point * float(cumulative[-1]), right=True))]
        assert abs(sorted(kept).index(token) - sorted(kept).index(expected)) <= 1 if token in kept else edge


def test_penalties_follow_the_counts_of_the_text_so_far() -> None:
    def adjusted(**settings: Any) -> list[float]:
        one = sequence(prompt=(0,), output=(1, 1, 2), temperature=0, **settings)
        logits = torch.tensor([[1.0, -1.0, 2.0, 0.5]])
        one.tokens, rest = one.tokens[:2], one.tokens[2:]
        sample(logits.clone(), [one])
        one.tokens += rest  # what was generated since the last call, at once or token by token
        sample(logits, [one])
        return [round(value, 4) for value in logits[0].tolist()]

    assert adjusted(presence_penalty=0.5) == [1.0, -1.5, 1.5, 0.5]
    assert adjusted(frequency_penalty=0.5) == [1.0, -2.0, 1.5, 0.5]
    assert adjusted(repetition_penalty=2.0) == [0.5, -2.0, 1.0, 0.5]
    assert adjusted(logit_bias=((3, 5.0), (1, -1.0))) == [1.0, -2.0, 2.0, 5.5]


def test_many_distinct_tokens_are_counted() -> None:
    one = sequence(prompt=tuple(range(500)), output=tuple(range(100)), repetition_penalty=1.5, presence_penalty=1.0)
    logits = torch.full((1, 600), 3.0)
    sample(logits, [one])
    assert logits[0].tolist() == [1.0] * 100 + [2.0] * 400 + [3.0] * 100


def test_a_row_is_the_same_alone_and_among_others_with_every_setting() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 3000) * 4
    rows: list[dict[str, Any]] = [
        {"temperature": 0},
        {},
        {"top_p": 0.9},
        {"top_k": 50},
        {"top_k": 700, "min_p": 0.01},
        {"min_p": 0.2},
        {"temperature": 0.3, "frequency_penalty": 1.0, "logprobs": 4},
        {"logit_bias": ((5, 8.0),), "logprobs": 0},
    ]
    made = [(i, rows[i % len(rows)]) for i in range(40)]
    together = sample(logits.clone(), [sequence(i, output=(i, i), **kwargs) for i, kwargs in made])
    alone = [sample(logits[i : i + 1].clone(), [sequence(i, output=(i, i), **kwargs)])[0] for i, kwargs in made]
    assert together == alone


def test_a_forbidden_token_is_never_drawn_and_a_failing_grammar_fails_alone() -> None:
    class Even:
        def begin(self) -> Even:
            return self

        def accept(self, token_ids: Any) -> None:
            if 99 in token_ids:
                raise ConstraintFailed("the grammar is exhausted")

        def forbidden(self) -> np.ndarray:
            return np.arange(300) % 2 == 1

        def forced(self) -> tuple[int, ...]:
            return ()

    logits = torch.zeros(300).repeat(400, 1)
    rows = [sequence(seed, constraint=Even(), logprobs=1) for seed in range(398)]
    broken, free = sequence(output=(99,), constraint=Even()), sequence(7)
    out = sample(logits, [*rows, broken, free])
    assert all((token.token_id or 0) % 2 == 0 for token in out[:398])
    assert isinstance(out[398].error, ConstraintFailed) and out[398].token_id is None
    assert out[399].token_id is not None and out[0].logprob is not None
    assert out[0].logprob.logprob == pytest.approx(-math.log(300), abs=1e-5), "logprobs are the model's own"


async def test_a_seed_gives_the_same_tokens_alone_and_in_any_company(tiny: Tiny) -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.95, seed=1234, ignore_eos=True)
    prompt = prompts(1)[0]
    async with running(tiny) as run:
        alone = await run.tokens(prompt, "r4", sampling=sampling, tokens=30)
        noise = [run.tokens(p, sampling=SamplingParams(ignore_eos=True), tokens=30) for p in prompts(6, seed=9)]
        together, *_ = await asyncio.gather(run.tokens(prompt, "r4", sampling=sampling, tokens=30), *noise)
        other = await run.tokens(prompt, "r4", sampling=SamplingParams(seed=1, ignore_eos=True), tokens=30)
        unseeded = [
            await run.tokens(prompt, "r4", sampling=SamplingParams(ignore_eos=True), tokens=30) for _ in range(2)
        ]
    assert alone == together
    assert len({tuple(alone), tuple(other), *map(tuple, unseeded)}) == 4


async def test_a_stop_string_ends_the_text_before_it(tiny: Tiny) -> None:
    sampling = SamplingParams(temperature=0, ignore_eos=True)
    async with running(tiny) as run:
        prompt = prompts(1)[0]
        full = "".join(d.text for d in await run.run(run.request(prompt, tokens=40)))
        stop = full[10:14]
        at = full.index(stop)
        deltas = await run.run(run.request(prompt, tokens=40, sampling=SamplingParams(0, 1, None, (stop,), True)))
        assert "".join(d.text for d in deltas) == full[:at]
        assert deltas[-1].finish_reason == "stop"
        assert deltas[-1].usage.completion_tokens < 40
        missed = await run.run(
            run.request(prompt, tokens=40, sampling=SamplingParams(0, 1, None, (full[-3:] + "x",), True))
        )
        assert "".join(d.text for d in missed) == full and missed[-1].finish_reason == "length"
        assert sampling.stop == ()


async def test_end_of_sequence_ends_a_completion_unless_it_is_ignored(tiny: Tiny) -> None:
    async with running(tiny) as run:
        prompt = prompts(1)[0]
        eos = (await run.tokens(prompt, tokens=5))[4]
        run.engine._active.eos_token_ids = frozenset({eos})
        deltas = await run.run(run.request(prompt, tokens=20, sampling=SamplingParams(temperature=0)))
        assert deltas[-1].finish_reason == "stop" and deltas[-1].token_ids == (eos,) and deltas[-1].text == ""
        ignored = await run.tokens(prompt, tokens=20)
        assert len(ignored) == 20 and eos in ignored
