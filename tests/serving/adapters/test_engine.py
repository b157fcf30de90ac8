"""Adapter memory under a real engine: blends answer as PEFT's, cold adapters come and go beside running ones."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from serving.core import AdapterRef
from serving.errors import AdapterRevoked
from tests.serving.harness import GREEDY, Running, running
from tests.serving.tiny import ADAPTERS, Tiny

PARTS = (("r4", 0.7), ("r16-rslora", -0.4))


async def blended(run: Running, prompt: list[int], tokens: int = 12) -> list[int]:
    request = run.request(prompt, tokens=tokens)
    ref = run.source.resolve_model("+".join(f"{name}:{weight}" for name, weight in PARTS))
    assert ref is not None
    request = type(request)(
        request.request_id, request.tenant, request.cache_scope, ref, request.prompt_token_ids, GREEDY, tokens
    )
    return [token for delta in await run.run(request) for token in delta.token_ids]


def reference(tiny: Tiny, prompt: list[int], tokens: int = 12) -> list[int]:
    name = "blend-" + hashlib.sha256(repr(PARTS).encode()).hexdigest()[:8]
    if name not in tiny._peft.peft_config:
        names, weights = zip(*PARTS, strict=True)
        tiny._peft.add_weighted_adapter(list(names), list(weights), name, combination_type="cat")
    return tiny.reference(name, prompt, tokens)


async def test_a_blend_gives_the_tokens_of_peft_alone_and_beside_its_parts(tiny: Tiny) -> None:
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 259) for _ in range(rng.randrange(20, 60))] for _ in range(3)]
    async with running(tiny) as run:
        assert await blended(run, prompts[0]) == reference(tiny, prompts[0])
        answers = await asyncio.gather(
            *(blended(run, prompt) for prompt in prompts), *(run.tokens(prompt, "r4") for prompt in prompts)
        )
        for prompt, blend, part in zip(prompts, answers[:3], answers[3:], strict=True):
            assert blend == reference(tiny, prompt) and part == tiny.reference("r4", prompt, 12)
        await run.settled()
        assert all(entry.pins == len(entry.blends) for entry in run.engine.adapters._entries.values())


async def test_revoking_a_part_fails_the_blends_running_requests_and_refuses_new_ones(tiny: Tiny) -> None:
    async with running(tiny) as run:
        prompt = list(range(10, 40))
        await blended(run, prompt)
        digest = run.digest("r4")
        assert digest is not None
        doomed = asyncio.create_task(blended(run, prompt, 400))
        other = asyncio.create_task(run.tokens(prompt, "r8-attention", tokens=60))
        while not run.engine.planner.running:
            await asyncio.sleep(0.001)
        await asyncio.wrap_future(run.engine.revoke(digest))
        with pytest.raises(AdapterRevoked):
            await doomed
        with pytest.raises(AdapterRevoked):
            await blended(run, prompt)
        assert await other == tiny.reference("r8-attention", prompt, 60)
        await run.settled()
        assert digest not in run.engine.adapters.states()


async def test_many_adapters_through_few_slots_keep_every_answer_right(tiny: Tiny) -> None:
    rng = random.Random(6)
    async with running(tiny, adapter_slots=2, max_num_seqs=8) as run:
        work = [(rng.choice([None, *ADAPTERS]), [rng.randrange(3, 259) for _ in range(20)]) for _ in range(40)]
        answers = await asyncio.gather(*(run.tokens(prompt, name, tokens=6) for name, prompt in work))
        for (name, prompt), tokens in zip(work, answers, strict=True):
            assert tokens == tiny.reference(name, prompt, 6)
        await run.settled()
        adapters = run.engine.adapters
        assert adapters.evictions > 0 and not adapters.residents._demand
        await asyncio.wrap_future(run.engine._inbox.call(adapters.check_integrity))


async def test_an_unknown_blend_part_is_an_unknown_adapter(tiny: Tiny) -> None:
    async with running(tiny) as run:
        assert run.source.resolve_model("r4:0.5+nobody:0.5") is None
        assert run.source.resolve_model("r4") == AdapterRef(run.digest("r4"))
