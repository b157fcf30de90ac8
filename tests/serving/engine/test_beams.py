"""Beam search in a real engine: the answers of transformers, alone and among others, and an end that frees all."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from serving.core import BeamParams, Delta, SamplingParams, TokenLogprob
from serving.errors import AdapterRevoked, BeamsTooWide, DeadlineExceeded
from serving.sampling.beams import BeamSearch, Choice
from serving.sampling.candidates import likeliest
from serving.steps import PendingStep, SampledToken, StepPlan
from tests.serving.harness import running
from tests.serving.tiny import Tiny

PROMPT = [40, 80, 120, 33, 99, 201, 77]
# The tiny model hardly ever ends by itself: of tokens that it likes, these end an answer instead.
ENDS = frozenset(range(3, 259, 9))
SEARCHES: tuple[dict[str, Any], ...] = (
    {},
    {"length_penalty": -1.0},
    {"early_stopping": True},
    {"length_penalty": 2.0, "early_stopping": "never"},
)


def beams(width: int, returned: int, *, search: dict[str, Any] | None = None, **settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0, beam=BeamParams(width, returned, **search or {}), **settings)


def answers(deltas: Sequence[Delta]) -> list[list[int]]:
    return [list(delta.token_ids) for delta in (deltas[-1], *deltas[-1].others)]


def known(tiny: Tiny, prompt: list[int], tokens: int, width: int, search: dict[str, Any]) -> list[list[int]]:
    ends = sorted(ENDS)
    return tiny.reference_beams("r4", prompt, tokens, returned=width, ends=ends, num_beams=width, **search)


@pytest.mark.parametrize("kernels", [True, False])
async def test_answers_are_those_of_transformers(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, kernels: bool) -> None:
    if not kernels:
        monkeypatch.setattr("serving.runner.load_library", lambda: None)
    async with running(tiny) as engine:
        engine.engine._active.eos_token_ids = ENDS
        for search in SEARCHES[:: 1 if kernels else 3]:
            for prompt, tokens in ((PROMPT, 24), (PROMPT * 5, 1), (PROMPT[:1] * 16, 9)):
                sampling = beams(4, 4, search=search, logprobs=1)
                deltas = await engine.run(engine.request(prompt, "r4", tokens=tokens, sampling=sampling))
                assert answers(deltas) == known(tiny, prompt, tokens, 4, search), search
                for delta in (deltas[-1], *deltas[-1].others):
                    assert delta.finish_reason == ("stop" if delta.token_ids[-1] in ENDS else "length")
                    assert [entry.token_id for entry in delta.logprobs] == list(delta.token_ids)
                usage = deltas[-1].usage
                assert max(map(len, answers(deltas))) <= usage.completion_tokens <= 4 * tokens
                assert not any(delta.token_ids or delta.text for delta in deltas[:-1]), "nothing is told before the end"
        await engine.settled()
        assert engine.engine.planner.pool.used == 0


async def test_nobody_beside_it_changes_an_answer_and_a_preempted_search_comes_to_the_same(tiny: Tiny) -> None:
    async with running(tiny, max_num_seqs=40, elastic_memory=False, max_model_len=200) as engine:
        engine.engine._active.eos_token_ids = ENDS
        engine.engine.planner.pool.set_limit(40)
        engine.engine._least_blocks = 40
        asked = [([3 + place, *PROMPT * (1 + place % 3)], 2 + place % 7, SEARCHES[place % 4]) for place in range(10)]
        runs = [
            engine.run(
                engine.request(
                    prompt, "r4", tokens=33, tenant=f"t{width % 3}", sampling=beams(width, width, search=search)
                )
            )
            for prompt, width, search in asked
        ]
        drawn = SamplingParams(temperature=0.9, seed=1, ignore_eos=True)
        others = [engine.tokens(PROMPT, "r8-attention", tokens=60, sampling=drawn) for _ in range(4)]
        found, drawn_tokens = await asyncio.gather(asyncio.gather(*runs), asyncio.gather(*others))
        await engine.settled()
        assert engine.engine.planner.preemptions > 0 and engine.engine.planner.pool.used == 0
        assert (
            drawn_tokens[0] == drawn_tokens[1] == await engine.tokens(PROMPT, "r8-attention", tokens=60, sampling=drawn)
        )
    for (prompt, width, search), deltas in zip(asked, found, strict=True):
        assert answers(deltas) == known(tiny, prompt, 33, width, search)
        counts = [delta.usage.completion_tokens for delta in deltas]
        assert counts == sorted(counts) and counts[-1] <= 33 * width, "what is computed again is not charged again"


async def test_revocation_cancellation_and_deadline_end_all_beams_at_once(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, elastic_memory=False) as engine:
        pool, launch = engine.engine.planner.pool, engine.engine.runner.launch

        def slowly(plan: StepPlan) -> PendingStep:
            time.sleep(0.002)
            return launch(plan)

        monkeypatch.setattr(engine.engine.runner, "launch", slowly)

        async def begun() -> tuple[asyncio.Task[list[Delta]], str]:
            sampling = beams(8, 2, ignore_eos=True)
            request = engine.request(PROMPT * 4, "r4", tokens=300, sampling=sampling)
            task = asyncio.create_task(engine.run(request))
            while pool.used < 10 and not task.done():
                await asyncio.sleep(0.001)
            assert not task.done()
            return task, request.request_id

        task, name = await begun()
        engine.engine.cancel(name)
        last = (await task)[-1]
        assert last.finish_reason == "cancelled" and not last.others
        assert last.usage.completion_tokens % 8 == 0 and 0 < last.usage.completion_tokens < 8 * 300
        await engine.settled()
        sampling = beams(8, 2, ignore_eos=True)
        with pytest.raises(DeadlineExceeded):
            await engine.run(
                engine.request(PROMPT * 4, "r4", tokens=300, sampling=sampling, deadline=time.monotonic() + 0.1)
            )
        await engine.settled()
        task, _ = await begun()
        digest = engine.digest("r4")
        assert digest is not None
        assert await asyncio.wrap_future(engine.engine.revoke(digest)) == 1
        with pytest.raises(AdapterRevoked):
            await task
        await engine.settled()
        assert pool.used == 0


class Switches:
    """A grammar of three tokens, each of which is one of two, and the end; the third depends on the first."""

    def __init__(self) -> None:
        self._seen: list[int] = []

    def begin(self) -> Switches:
        return Switches()

    begin_draft = begin

    def accept(self, token_ids: Sequence[int]) -> None:
        self._seen += token_ids

    def forced(self) -> tuple[int, ...]:
        return ()

    def forbidden(self) -> np.ndarray:
        at = len(self._seen)
        allowed = {0: (60, 61), 1: (70, 71), 2: (80, 81)}.get(at, (2,))
        return ~np.isin(np.arange(259), [allowed[0]] if at == 2 and self._seen[0] == 61 else allowed)

    def allowed_bits(self) -> np.ndarray:
        raise AssertionError("only a GPU asks for bits")


async def test_a_search_as_wide_as_its_grammar_finds_every_answer_in_order(tiny: Tiny) -> None:
    async with running(tiny) as engine:
        sampling = beams(7, 7, search={"length_penalty": 0.0}, constraint=Switches())
        deltas = await engine.run(engine.request(PROMPT, "r4", tokens=8, sampling=sampling))
        await engine.settled()
    language = [[a, b, c, 2] for a in (60, 61) for b in (70, 71) for c in ((80, 81) if a == 60 else (80,))]
    scores = {tuple(one): sum(tiny.reference_logprobs("r4", [*PROMPT, *one])[-4:]) for one in language}
    assert [tuple(one) for one in answers(deltas)] == sorted(scores, key=lambda one: -scores[one]), "six, not seven"
    assert deltas[-1].usage.completion_tokens == 2 + 4 + 6 + 6


async def test_beams_that_could_not_fit_are_refused_and_hold_nothing(tiny: Tiny) -> None:
    async with running(tiny, max_num_seqs=6) as engine:
        for width, tokens in ((7, 4), (6, 480)):
            engine.engine._least_blocks = 100
            with pytest.raises(BeamsTooWide, match="replica"):
                await engine.run(engine.request(PROMPT, tokens=tokens, sampling=beams(width, 1)))
        await engine.settled()
        assert len(await engine.tokens(PROMPT, tokens=200, sampling=beams(6, 1, ignore_eos=True))) == 200


def rows(*candidates: list[tuple[int, float]]) -> list[SampledToken]:
    return [SampledToken(0, candidates=tuple(row)) for row in candidates]


def test_of_equal_candidates_the_lower_beam_goes_first_then_the_lower_token() -> None:
    search = BeamSearch(BeamParams(2, 2), frozenset({9}), 4)
    assert search.advance(rows([(5, -1.0), (7, -1.0), (8, -1.0)])) == [Choice(0, 5), Choice(0, 7)]
    assert search.advance(rows([(6, -2.0), (9, -2.0)], [(4, -2.0), (6, -1.5)])) == [Choice(1, 6), Choice(0, 6)]
    # The end took the second place: it is an answer, and the next candidate goes on in its stead.
    assert search.advance(rows([(6, -1.0), (9, -1.5)], [(3, -2.0)])) == [Choice(0, 6), Choice(1, 3)]
    assert [one.entries[-1].token_id for one in search.complete] == [9]
    assert not search.advance(rows([(6, -1.0)], [(9, -0.5)])), "four tokens are the limit"
    assert [(one.ended, len(one.entries)) for one in search.complete] == [(False, 4), (True, 3)]
    assert search.computed_tokens == 8


def test_likeliest_tokens_come_in_order_of_their_ids_where_they_are_equal() -> None:
    row = torch.full((300,), -4.0)
    row[[7, 200]] = -1.0
    row[3] = -math.inf
    assert likeliest(row, 4) == ((7, -1.0), (200, -1.0), (0, -4.0), (1, -4.0))
    row[:] = -math.inf
    row[[5, 4]] = -0.5
    assert likeliest(row, 4) == ((4, -0.5), (5, -0.5)), "what has no probability is no candidate"


def test_alternatives_are_those_of_the_row_that_the_token_was_chosen_from() -> None:
    search = BeamSearch(BeamParams(2, 1), frozenset(), 1)
    reported = TokenLogprob(1, -0.1, ((1, -0.1), (2, -3.0)))
    search.advance([SampledToken(1, reported, candidates=((1, -0.1), (2, -3.0)))])
    assert search.complete[1].entries == (TokenLogprob(2, -3.0, reported.top),)
