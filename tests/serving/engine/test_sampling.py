"""Drawing tokens: seeds, nucleus, logprobs, stop strings through the whole engine."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
import torch

from serving.core import SamplingParams
from serving.sampling import sample
from tests.serving.engine.test_parity import prompts
from tests.serving.harness import running
from tests.serving.tiny import Tiny


def draw(logits: torch.Tensor, seed: int = 0, **kwargs: float) -> int | None:
    return sample(logits[None], [(SamplingParams(**kwargs), random.Random(seed))])[0].token_id


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
    params = SamplingParams(temperature=0)
    out = sample(logits, [(params, random.Random(0))] * 2)
    assert [token.token_id for token in out] == [None, 1]


def test_logprobs_are_of_the_unscaled_distribution() -> None:
    probs = torch.tensor([0.7, 0.2, 0.1])
    out = sample(probs.log()[None], [(SamplingParams(temperature=0, logprobs=2), random.Random(0))])[0]
    assert out.logprob is not None
    assert out.logprob.logprob == pytest.approx(probs[0].log().item())
    assert [token for token, _ in out.logprob.top] == [0, 1]


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
        run.engine.eos_token_ids = frozenset({eos})
        deltas = await run.run(run.request(prompt, tokens=20, sampling=SamplingParams(temperature=0)))
        assert deltas[-1].finish_reason == "stop" and deltas[-1].token_ids == (eos,) and deltas[-1].text == ""
        ignored = await run.tokens(prompt, tokens=20)
        assert len(ignored) == 20 and eos in ignored
