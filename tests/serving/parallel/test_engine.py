"""A replica of several processes: every token is that of one process, and no process outlives another."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import pytest

from devstack.state import State
from examples.score import ROOT
from serving.config import ServingConfig
from serving.core import AdapterRef, SamplingParams
from serving.engine import Engine
from serving.errors import AdapterRevoked, AdapterUnavailable, ConfigError, EngineError
from serving.parallel.ranks import Ranks
from serving.parallel.runner import LeadingRunner
from tests.serving.engine.test_parity import prompts
from tests.serving.harness import Running, running
from tests.serving.tiny import ADAPTERS, ALL_TARGETS, Tiny, write_adapter

NAMES = [None, *ADAPTERS]
PATIENCE = 900.0  # seconds that ranks wait for one another: an end that comes sooner does not come of it
Answers = list[list[int]]


def ranks_of(engine: Engine) -> Ranks:
    runner = engine.runner
    assert isinstance(runner, LeadingRunner)
    return runner.ranks


async def answers(run: Running, work: Answers, tokens: int, names: list[str | None]) -> Answers:
    asked = (run.tokens(prompt, names[i % len(names)], tokens=tokens) for i, prompt in enumerate(work))
    return list(await asyncio.gather(*asked))


@pytest.fixture
def with_dora(tiny: Tiny, tmp_path: Path) -> Tiny:
    """The tiny model's adapters, and one with extras."""
    for folder in tiny.adapters.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    write_adapter(tmp_path / "dora", tiny.model, 7, r=4, lora_alpha=8, target_modules=ALL_TARGETS, use_dora=True)
    return dataclasses.replace(tiny, adapters=tmp_path)


@pytest.mark.deep
async def test_two_processes_answer_as_one_until_one_is_killed(tiny: Tiny, with_dora: Tiny) -> None:
    mixed, long = prompts(10), prompts(12, low=150, high=170, seed=6)
    sampled = SamplingParams(temperature=0.8, top_p=0.9, seed=7, ignore_eos=True, logprobs=2)
    async with running(tiny) as run:
        expected = await answers(run, mixed, 24, NAMES), await answers(run, long, 120, NAMES)
        blend = AdapterRef.blend([(str(run.digest("r4")), 0.5), (str(run.digest("r8-attention")), -0.75)])
        blended = await _with(run, blend, mixed[0])
        drawn = await run.tokens(mixed[1], "r4", sampling=sampled)
        vector = await _embedding(run, mixed[2], "r16-rslora")
    assert expected[0][1] == tiny.reference(NAMES[1], mixed[1], 24)

    settings = {"kv_cache_mb": 1, "max_batched_tokens": 40, "max_num_seqs": 16}
    async with running(with_dora, tensor_parallel=2, tensor_parallel_timeout_s=PATIENCE, **settings) as run:
        assert await run.tokens(mixed[0], tokens=24) == expected[0][0]
        ranks, stats = ranks_of(run.engine), run.engine.stats
        sums, steps = _count(run.engine), stats.steps
        for _ in range(2):  # prompts in chunks; the second time through, prefixes are cached
            assert await answers(run, mixed, 24, NAMES) == expected[0]
        assert await answers(run, long, 120, NAMES) == expected[1]
        await run.settled()
        assert stats.prefix_hits > 0 and stats.max_adapters_in_one_batch >= 2 and stats.preemptions > 0
        assert sums[0] == 2 * 3 * (stats.steps - steps)  # two for each of three layers, whatever is adapted
        assert await _with(run, blend, mixed[0]) == blended
        assert await run.tokens(mixed[1], "r4", sampling=sampled) == drawn
        assert await _embedding(run, mixed[2], "r16-rslora") == pytest.approx(vector, abs=1e-5)
        with pytest.raises(AdapterUnavailable, match="DoRA"):
            await run.tokens(mixed[1], "dora")
        await _revoked(run, mixed[1], expected[0][1])
        await _killed(run, ranks)


async def _with(run: Running, ref: AdapterRef, prompt: list[int]) -> list[int]:
    request = run.request(prompt)
    object.__setattr__(request, "adapter", ref)
    return [token for delta in await run.run(request) for token in delta.token_ids]


async def _embedding(run: Running, prompt: list[int], adapter: str) -> list[float]:
    request = run.request(prompt, adapter, tokens=0)
    object.__setattr__(request, "embed", True)
    (last,) = await run.run(request)
    assert last.embedding is not None
    return memoryview(last.embedding).cast("f").tolist()


def _count(engine: Engine) -> list[int]:
    """Count rank 0's collectives in the cell that is returned: the others' are as many, or the steps would hang."""
    assert isinstance(engine.runner, LeadingRunner)
    collectives, count = engine.runner.model.collectives, [0]
    add = collectives.sum

    def counted(partial: object) -> None:
        count[0] += 1
        add(partial)

    collectives.sum = counted
    return count


async def _revoked(run: Running, prompt: list[int], expected: list[int]) -> None:
    """An adapter that is revoked while it answers ends at once, and comes back whole when it is let in again."""
    digest = str(run.digest("r4"))
    handle = run.engine.submit(run.request(prompt, "r4", tokens=300))
    await anext(aiter(handle))
    assert await asyncio.wrap_future(run.engine.revoke(digest)) == 1
    with pytest.raises(AdapterRevoked):
        async for _ in handle:
            pass
    with pytest.raises(AdapterRevoked):
        run.engine.submit(run.request(prompt, "r4"))
    await asyncio.wrap_future(run.engine.readmit(digest))
    assert await run.tokens(prompt, "r4", tokens=24) == expected


async def _killed(run: Running, ranks: Ranks) -> None:
    """A rank that is killed in the middle of an answer ends the replica, and everything that was its."""
    (pid,), told = ranks.pids, asyncio.Event()
    loop = asyncio.get_running_loop()
    run.engine.on_failure = lambda: loop.call_soon_threadsafe(told.set)
    handle = run.engine.submit(run.request([5] * 9, "r16-rslora", tokens=400))
    await anext(aiter(handle))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        async for _ in handle:
            pass
    await told.wait()
    await asyncio.to_thread(run.engine.stop)
    assert run.engine.failure is not None and "rank 1 " in run.engine.failure
    assert not run.engine.accepting
    _nothing_is_left(ranks, [pid])


def _nothing_is_left(ranks: Ranks, pids: list[int]) -> None:
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not Path(ranks.meeting).parent.exists()
    # Shared memory has no name: nothing is below /dev/shm, and the last descriptor is closed.
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if "intarsia-ranks" in _link(fd)]


def _link(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except OSError:
        return ""


@pytest.mark.deep
async def test_three_processes_answer_as_one_on_a_real_model() -> None:
    model = State.open().base_model  # SmolLM2-135M: 9 heads, 3 KV heads, 30 layers
    assert (model / "config.json").exists(), "the base model is missing; `make setup-dev` fetches it"
    real = Tiny(model, ROOT / "adapters", None)  # type: ignore[arg-type]  # no reference is asked for
    names = [None, "finance", "health", "telecom"]  # of rank 8, 16 and 32, on different linears
    work = [[100 + 7 * i + 31 * j for j in range(9 + 8 * i)] for i in range(4)]
    settings = {"kv_cache_mb": 64, "adapter_memory_mb": 64, "max_model_len": 256, "max_batched_tokens": 64}
    async with running(real, **settings) as run:
        expected = await answers(run, work, 6, names)
    async with running(real, **settings, tensor_parallel=3) as run:
        ranks = ranks_of(run.engine)
        pids = ranks.pids
        assert len(pids) == 2 and await answers(run, work, 6, names) == expected
    assert run.engine.failure is None
    _nothing_is_left(ranks, pids)
    assert len({tuple(tokens) for tokens in expected}) == 4


def test_what_several_processes_do_not_compute_is_refused_by_its_flag(tiny: Tiny) -> None:
    for settings, message in (
        ({"dtype": "int8"}, "--dtype int8: not with --tensor-parallel 2"),
        ({"kv_dtype": "int8"}, "--kv-dtype int8: not with"),
        ({"adapter_dtype": "int8"}, "--adapter-dtype int8: not with"),
        ({"kv_host_gb": 1.0}, "--kv-host-gb 1: not with"),
        ({"kv_disk": Path("/tmp"), "kv_disk_gb": 1.0}, "--kv-disk /tmp: not with"),
    ):
        ServingConfig(model=tiny.model, **settings)
        with pytest.raises(ConfigError, match=message):
            ServingConfig(model=tiny.model, tensor_parallel=2, **settings)
    with pytest.raises(ConfigError, match="--tensor-parallel 0: at least 1"):
        ServingConfig(model=tiny.model, tensor_parallel=0)


async def test_a_number_that_does_not_divide_the_model_starts_no_process(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"--tensor-parallel 4: .* 4 heads, 2 KV heads .* among 1 or 2 ranks"):
        async with running(tiny, tensor_parallel=4):
            pass
