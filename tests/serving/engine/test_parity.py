"""The engine's greedy tokens are transformers' and PEFT's, however the work is cut up."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from peft import PeftModel
from transformers import LlamaForCausalLM

from tests.serving.harness import running
from tests.serving.tiny import ADAPTERS, ALL_TARGETS, Tiny, write_adapter

NAMES = [None, *ADAPTERS]


def prompts(count: int, low: int = 3, high: int = 70, seed: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 259) for _ in range(rng.randint(low, high))] for _ in range(count)]


@pytest.fixture(scope="module")
def expected(tiny: Tiny) -> dict[int, list[int]]:
    return {i: tiny.reference(NAMES[i % 5], p, 24) for i, p in enumerate(prompts(10))}


async def test_a_request_alone_gets_the_reference_tokens(tiny: Tiny, expected: dict[int, list[int]]) -> None:
    assert len({tuple(tokens) for tokens in expected.values()}) == len(expected)
    async with running(tiny) as run:
        for i, prompt in enumerate(prompts(10)):
            assert await run.tokens(prompt, NAMES[i % 5], tokens=24) == expected[i]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_batched_tokens": 7, "max_num_seqs": 7},
        {"max_batched_tokens": 64, "block_size": 5, "max_num_seqs": 3},
        {"prefix_caching": False},
    ],
    ids=["whole-prompts", "chunks-of-7", "few-at-once", "no-prefix-cache"],
)
async def test_a_mixed_batch_gets_the_reference_tokens(
    tiny: Tiny, expected: dict[int, list[int]], settings: dict[str, int]
) -> None:
    async with running(tiny, **settings) as run:
        for _ in range(2):  # the second time through, prefixes are cached
            results = await asyncio.gather(
                *(run.tokens(prompt, NAMES[i % 5], tokens=24) for i, prompt in enumerate(prompts(10)))
            )
            assert dict(enumerate(results)) == expected
        await run.settled()
        hits = run.engine.stats.prefix_hits
        assert hits > 0 if settings.get("prefix_caching", True) else hits == 0
        assert run.engine.stats.max_adapters_in_one_batch >= 2


async def test_preempted_requests_get_the_reference_tokens(tiny: Tiny) -> None:
    work = prompts(8, low=150, high=170, seed=6)
    async with running(tiny, kv_cache_mb=1, prefix_caching=False, elastic_memory=False) as run:
        await asyncio.gather(*(run.tokens([5], name, tokens=1) for name in NAMES))  # every adapter is there
        together = threading.Event()
        run.engine._inbox.post(lambda: together.wait(10))
        tasks = [asyncio.create_task(run.tokens(p, NAMES[i % 5], tokens=60)) for i, p in enumerate(work)]
        await asyncio.sleep(0)
        together.set()
        results = await asyncio.gather(*tasks)
        assert run.engine.stats.preemptions > 0
        await run.settled()
        assert run.engine.planner.pool.used == 0
    for i, prompt in enumerate(work):
        assert results[i] == tiny.reference(NAMES[i % 5], prompt, 60)


async def test_adapters_beyond_the_pool_take_turns_and_still_get_the_reference_tokens(
    tiny: Tiny, expected: dict[int, list[int]]
) -> None:
    async with running(tiny, adapter_slots=2) as run:
        results = await asyncio.gather(
            *(run.tokens(prompt, NAMES[i % 5], tokens=24) for i, prompt in enumerate(prompts(10)))
        )
        assert dict(enumerate(results)) == expected
        assert run.engine.adapters.evictions > 0
        assert run.engine.stats.max_adapters_in_one_batch <= 2


@pytest.fixture(scope="module")
def extremes(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The smallest and the largest rank that is sold."""
    folder = tmp_path_factory.mktemp("extremes")
    write_adapter(folder / "r1", tiny.model, 11, r=1, lora_alpha=2, target_modules=ALL_TARGETS)
    write_adapter(folder / "r64", tiny.model, 12, r=64, lora_alpha=16, target_modules=ALL_TARGETS, use_rslora=True)
    base = LlamaForCausalLM.from_pretrained(tiny.model)
    peft = PeftModel.from_pretrained(base, folder / "r1", adapter_name="r1")
    peft.load_adapter(folder / "r64", adapter_name="r64")
    return Tiny(tiny.model, folder, peft.eval())


async def test_ranks_1_and_64_side_by_side_get_the_reference_tokens(extremes: Tiny) -> None:
    names, work = ["r1", "r64", None], prompts(6, seed=12)
    async with running(extremes, max_batched_tokens=40, max_num_seqs=8) as run:
        results = await asyncio.gather(*(run.tokens(p, names[i % 3], tokens=24) for i, p in enumerate(work)))
    assert results == [extremes.reference(names[i % 3], p, 24) for i, p in enumerate(work)]


async def test_usage_reports_cached_prompt_tokens(tiny: Tiny) -> None:
    prompt = prompts(1, low=70)[0][:70]
    async with running(tiny) as run:
        first = (await run.run(run.request(prompt, "r4")))[-1].usage
        second = (await run.run(run.request(prompt, "r4")))[-1].usage
    assert (first.prompt_tokens, first.completion_tokens, first.cached_tokens) == (70, 12, 0)
    assert (second.prompt_tokens, second.completion_tokens, second.cached_tokens) == (70, 12, 69)


async def test_a_prefix_is_never_shared_across_scopes_adapters_or_with_the_base(tiny: Tiny) -> None:
    prompt = prompts(1, low=70)[0][:70]
    async with running(tiny) as run:
        await run.run(run.request(prompt, "r4", scope="a"))
        for adapter, scope in (("r4", "b"), ("r8-attention", "a"), (None, "a")):
            assert (await run.run(run.request(prompt, adapter, scope=scope)))[-1].usage.cached_tokens == 0
        assert (await run.run(run.request(prompt, "r4", scope="a")))[-1].usage.cached_tokens == 69


async def test_the_part_of_a_block_that_two_prompts_share_is_copied_within_scope_and_adapter(tiny: Tiny) -> None:
    """Of 53 common tokens 48 fill blocks; the other 5 are copied, and answers stay transformers'."""
    common, ends = prompts(1, low=70)[0][:53], prompts(4, low=40, seed=5)
    earlier, *work = ([*common, *end[:30]] for end in ends)
    async with running(tiny) as run:
        for place, prompt in enumerate((earlier, *work)):
            usage = (await run.run(run.request(prompt, "r4", scope="a")))[-1].usage
            assert usage.cached_tokens == (53 if place else 0)
        assert [await run.tokens(prompt, "r4", scope="a") for prompt in work] == [
            tiny.reference("r4", prompt, 12) for prompt in work
        ]
        for adapter, scope in (("r4", "b"), ("r8-attention", "a"), (None, "a")):
            assert (await run.run(run.request(work[0], adapter, scope=scope)))[-1].usage.cached_tokens == 0
        await run.settled()
