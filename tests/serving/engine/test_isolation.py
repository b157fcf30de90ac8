"""One request never shows in another's answer: bad adapters, revocation, cancellation, failing steps."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from lora_kernels import AdapterTensors, LoraPair
from serving.adapters.gate import Pause
from serving.errors import (
    AdapterRevoked,
    AdapterUnavailable,
    DeadlineExceeded,
    EngineStopped,
    NonFiniteOutput,
    PromptTooLong,
    QueueFull,
    StepFailed,
)
from serving.steps import PendingStep, StepPlan
from tests.serving.engine.test_parity import prompts
from tests.serving.harness import Running, running
from tests.serving.tiny import Tiny


def poison(run: Running, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes `name` finite but overflowing. Intake would refuse such norms; the engine must hold without it."""
    load, digest = run.source.load, run.digest(name)

    def overflowing(wanted: str, pause: Pause) -> AdapterTensors:
        tensors = load(wanted, pause)
        if wanted != digest:
            return tensors
        return {key: LoraPair(pair.a * 1e19, pair.b * 1e19, pair.scale) for key, pair in tensors.items()}

    monkeypatch.setattr(run.source, "load", overflowing)


async def test_an_adapter_that_overflows_fails_alone(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    work = prompts(4, seed=8)
    names = [None, "r4", "r16-rslora", None]
    async with running(tiny, kv_cache_mb=1) as run:
        poison(run, monkeypatch, "r8-attention")
        for _ in range(3):  # again and again: the poisoned KV blocks go round the pool
            bad = [asyncio.create_task(run.tokens(p, "r8-attention")) for p in work]
            good = await asyncio.gather(*(run.tokens(p, n) for p, n in zip(work, names, strict=True)))
            for task in bad:
                with pytest.raises(NonFiniteOutput):
                    await task
            for prompt, name, tokens in zip(work, names, good, strict=True):
                assert tokens == tiny.reference(name, prompt, 12)
        await run.settled()


async def test_stale_blocks_of_a_cancelled_overflowing_request_poison_no_other(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompts(1, low=400, high=410)[0]
    async with running(tiny, kv_cache_mb=1, prefix_caching=False, max_batched_tokens=64) as run:
        poison(run, monkeypatch, "r8-attention")
        request = run.request(prompt, "r8-attention", tokens=50)
        run.engine.submit(request)
        while run.engine.stats.prompt_tokens < 200:
            await asyncio.sleep(0.001)
        run.engine.cancel(request.request_id)  # before its first logits could give it away
        assert await run.tokens(prompt) == tiny.reference(None, prompt, 12)


async def test_a_forgotten_scope_leaves_no_kv_and_no_answers_and_others_keep_theirs(tiny: Tiny) -> None:
    prompt = prompts(1, low=100, high=110)[0]
    async with running(tiny) as run:

        async def cached(scope: str) -> int:
            deltas = await run.run(run.request(prompt, "r4", scope=scope))
            return deltas[-1].usage.cached_tokens

        for scope in ("erased", "other"):
            assert await cached(scope) == 0 < await cached(scope)
        await run.settled()
        zeroed = await asyncio.wrap_future(run.engine.forget("erased"))
        assert zeroed >= len(prompt) // run.engine.planner.pool.block_size
        books = run.engine.planner.drafts.drafter.books
        assert {scope for scope, _ in books._books} == {"other"}
        assert await cached("other") > 0 == await cached("erased")
        await run.settled()


async def test_cancelling_frees_the_blocks_within_a_step(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tiny) as run:
        slow_down(run, monkeypatch)
        request = run.request(prompts(1)[0], "r4", tokens=400)
        handle = run.engine.submit(request)
        await anext(handle)
        used = run.engine.planner.pool.used
        run.engine.cancel(request.request_id)
        rest = [delta async for delta in handle]
        assert used > 0 and rest[-1].finish_reason == "cancelled"
        steps = run.engine.stats.steps
        await run.settled()
        assert run.engine.planner.pool.used == 0
        assert run.engine.stats.steps <= steps + 1


async def test_a_cancel_storm_leaks_nothing(tiny: Tiny) -> None:
    async with running(tiny, kv_cache_mb=1, adapter_slots=2, max_num_seqs=8) as run:
        for round_ in range(3):
            handles = []
            for i, prompt in enumerate(prompts(30, seed=round_)):
                request = run.request(prompt, [None, "r4", "r8-attention", "r16-rslora"][i % 4], tokens=100)
                handles.append(run.engine.submit(request))
            for i, handle in enumerate(handles):
                run.engine.cancel(handle.request_id)
                if i % 5 == 0:
                    await asyncio.sleep(0.002)
            await run.settled()
            assert run.engine.planner.pool.used == 0
        assert all(entry.pins == 0 for entry in run.engine.adapters._entries.values())


async def test_revoking_aborts_the_adapters_requests_and_zeroes_what_it_left(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompts(1, low=40)[0]
    async with running(tiny) as run:
        digest = run.digest("r4")
        assert digest is not None
        slow_down(run, monkeypatch)
        doomed = run.engine.submit(run.request(prompt, "r4", tokens=300))
        other = asyncio.create_task(run.tokens(prompt, "r8-attention", tokens=40))
        await anext(doomed)
        assert await asyncio.wrap_future(run.engine._inbox.call(lambda: _revoke_and_look(run, doomed.request_id))) == 0
        with pytest.raises(AdapterRevoked):
            async for _ in doomed:
                pass
        with pytest.raises(AdapterRevoked):
            run.engine.submit(run.request(prompt, "r4"))
        assert digest not in run.engine.adapters.states()
        assert await other == tiny.reference("r8-attention", prompt, 40)
        await run.settled()
        await asyncio.wrap_future(run.engine.readmit(digest))
        again = await run.run(run.request(prompt, "r4"))
        assert again[-1].usage.cached_tokens == 0
        assert [t for d in again for t in d.token_ids] == tiny.reference("r4", prompt, 12)


def _revoke_and_look(run: Running, request_id: str) -> int:
    """In the engine thread, before anyone is given the blocks and pages: how many numbers are left in them."""
    sequence, _ = run.engine._active[request_id]
    blocks, data = list(sequence.blocks), run.engine.runner.kv.data
    assert sequence.digest is not None
    pool = run.engine.adapters.pool
    pages = list(pool.slot_pages(run.engine.adapters.slot(sequence.digest)))
    weights = [pool.site(site.name).a for site in pool.spec.sites]
    assert data[blocks].any() and any(site[:, pages].any() for site in weights)
    assert run.engine._revoke(sequence.digest) == 1
    return int(data[blocks].count_nonzero()) + sum(int(site[:, pages].count_nonzero()) for site in weights)


async def test_an_adapter_that_cannot_be_loaded_fails_its_request_only(tiny: Tiny, tmp_path: Path) -> None:
    broken = tiny.adapters / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_bytes((tiny.adapters / "r4" / "adapter_config.json").read_bytes())
    (broken / "adapter_model.safetensors").write_bytes(b"\x08" + b"\0" * 7 + b"not json")
    try:
        async with running(tiny) as run:
            good = asyncio.create_task(run.tokens([9, 10, 11], "r4"))
            with pytest.raises(AdapterUnavailable, match="broken"):
                await run.tokens([9, 10, 11], "broken")
            assert await good == tiny.reference("r4", [9, 10, 11], 12)
    finally:
        for file in broken.iterdir():
            file.unlink()
        broken.rmdir()


async def test_a_failing_step_fails_its_requests_and_the_engine_goes_on(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny) as run:
        launch = run.engine.runner.launch
        monkeypatch.setattr(run.engine.runner, "launch", lambda plan: 1 // 0)
        with pytest.raises(StepFailed):
            await run.tokens([9, 10, 11])
        monkeypatch.setattr(run.engine.runner, "launch", launch)
        assert await run.tokens([9, 10, 11]) == tiny.reference(None, [9, 10, 11], 12)
        await run.settled()


async def test_a_request_past_its_deadline_ends_with_a_typed_error(tiny: Tiny) -> None:
    async with running(tiny) as run:
        handle = run.engine.submit(run.request([9, 10], tokens=500, deadline=run.engine._clock() + 0.05))
        with pytest.raises(DeadlineExceeded):
            async for _ in handle:
                pass
        await run.settled()


async def test_refusals_come_at_once_and_hold_nothing(tiny: Tiny) -> None:
    async with running(tiny, max_queue=2, max_num_seqs=1) as run:
        with pytest.raises(PromptTooLong):
            run.engine.submit(run.request([5] * 500, tokens=13))
        handles = []
        with pytest.raises(QueueFull) as refusal:
            for _ in range(10):
                handles.append(run.engine.submit(run.request([5] * 50, tokens=400)))
        assert 1 <= refusal.value.retry_after <= 60
        for handle in handles:
            run.engine.cancel(handle.request_id)
        await run.settled()


def slow_down(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take long enough for a test to act between two of them."""
    launch = run.engine.runner.launch

    def slow(plan: StepPlan) -> PendingStep:
        time.sleep(0.01)
        return launch(plan)

    monkeypatch.setattr(run.engine.runner, "launch", slow)


async def test_stopping_fails_what_is_left(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tiny) as run:
        slow_down(run, monkeypatch)
        handle = run.engine.submit(run.request([5, 6], tokens=500))
        await anext(handle)
        await asyncio.to_thread(run.engine.stop)
        with pytest.raises(EngineStopped):
            async for _ in handle:
                pass
        with pytest.raises(EngineStopped):
            run.engine.submit(run.request([5, 6]))


async def test_a_slow_adapter_load_delays_no_other_request(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tiny) as run:
        gate, loop = asyncio.Event(), asyncio.get_running_loop()
        load = run.source.load

        def slow(digest: str, pause: Pause) -> AdapterTensors:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(10)
            return load(digest, pause)

        monkeypatch.setattr(run.source, "load", slow)
        waiting = asyncio.create_task(run.tokens([9, 10, 11], "r4"))
        assert await run.tokens([9, 10, 11]) == tiny.reference(None, [9, 10, 11], 12)
        assert not waiting.done()
        gate.set()
        assert await waiting == tiny.reference("r4", [9, 10, 11], 12)


async def test_requests_that_come_during_warm_up_are_served_after_it_and_counted(tiny: Tiny) -> None:
    async with running(tiny) as run:
        assert await run.tokens([9, 10, 11]) == tiny.reference(None, [9, 10, 11], 12)
        assert run.engine.ready.is_set()
        assert run.engine.stats.generated_tokens == 12 and run.engine.stats.prompt_tokens == 3
