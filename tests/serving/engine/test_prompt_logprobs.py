"""How likely the prompt's own tokens are: what transformers and PEFT say, however the work is cut up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from serving.core import Delta, SamplingParams
from serving.errors import NonFiniteOutput
from tests.serving.engine.test_isolation import poison
from tests.serving.engine.test_parity import NAMES, prompts
from tests.serving.harness import Running, running
from tests.serving.tiny import Tiny

SCORED = SamplingParams(temperature=0, ignore_eos=True, prompt_logprobs=3)


async def scored(run: Running, prompt: list[int], name: str | None, tokens: int = 2) -> list[Delta]:
    return await run.run(run.request(prompt, name, tokens=tokens, sampling=SCORED))


@pytest.fixture(scope="module")
def expected(tiny: Tiny) -> list[list[float]]:
    return [tiny.reference_logprobs(NAMES[i % 5], p) for i, p in enumerate(prompts(10))]


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_batched_tokens": 7, "max_num_seqs": 7}, {"prefix_caching": False}],
    ids=["whole-prompts", "chunks-of-7", "no-prefix-cache"],
)
async def test_they_are_the_reference_s_and_the_same_bits_again(
    tiny: Tiny, expected: list[list[float]], settings: dict[str, int]
) -> None:
    async with running(tiny, **settings) as run:
        alone = [await scored(run, prompt, NAMES[i % 5]) for i, prompt in enumerate(prompts(10))]
        again = await asyncio.gather(*(scored(run, p, NAMES[i % 5]) for i, p in enumerate(prompts(10))))
        plain = await run.tokens(prompts(1)[0], NAMES[0], tokens=2)
        await run.settled()
    for deltas, prompt, logprobs in zip(alone, prompts(10), expected, strict=True):
        entries = deltas[0].prompt_logprobs
        assert [entry.token_id for entry in entries] == prompt[1:]
        assert [entry.logprob for entry in entries] == pytest.approx(logprobs, abs=1e-3)
        assert all(len(e.top) == 3 and e.top[0][1] >= max(e.logprob, e.top[1][1], e.top[2][1]) for e in entries)
        assert not deltas[1].prompt_logprobs and deltas[0].usage.cached_tokens == 0
    assert [d[0].prompt_logprobs for d in alone] == [d[0].prompt_logprobs for d in again]
    assert [token for delta in alone[0] for token in delta.token_ids] == plain


async def test_prompt_logprobs_requests_fill_the_cache_for_requests_without_them(tiny: Tiny) -> None:
    prompt = prompts(1, low=70)[0][:70]
    async with running(tiny) as run:
        await scored(run, prompt, "r4")
        assert (await run.run(run.request(prompt, "r4")))[0].usage.cached_tokens == 64
        last = (await scored(run, prompt, "r4"))[0]
    assert last.usage.cached_tokens == 0 and len(last.prompt_logprobs) == 69


async def test_a_preempted_request_reports_each_token_once(tiny: Tiny) -> None:
    work = prompts(8, low=150, high=170, seed=6)
    async with running(tiny, kv_cache_mb=1, max_batched_tokens=64, elastic_memory=False) as run:
        alone = [(await scored(run, prompt, NAMES[i % 5]))[0].prompt_logprobs for i, prompt in enumerate(work)]
        together = threading.Event()
        run.engine._inbox.post(lambda: together.wait(10))
        tasks = [asyncio.create_task(scored(run, p, NAMES[i % 5], tokens=60)) for i, p in enumerate(work)]
        await asyncio.sleep(0)
        together.set()
        results = await asyncio.gather(*tasks)
        assert run.engine.stats.preemptions > 0
        await run.settled()
    assert [deltas[0].prompt_logprobs for deltas in results] == alone


async def test_a_prompt_of_one_token_has_none(tiny: Tiny) -> None:
    async with running(tiny) as run:
        deltas = await scored(run, [9], None)
    assert deltas[0].prompt_logprobs == () and len(deltas) == 2


async def test_a_logprob_that_is_not_finite_is_an_error(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tiny) as run:
        poison(run, monkeypatch, "r8-attention")
        with pytest.raises(NonFiniteOutput):
            await scored(run, prompts(1)[0], "r8-attention")
        good = await scored(run, prompts(1)[0], None)
    assert [e.logprob for e in good[0].prompt_logprobs] == pytest.approx(
        tiny.reference_logprobs(None, prompts(1)[0]), abs=1e-3
    )
