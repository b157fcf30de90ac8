"""One tenant's heavy grammars: others compile meanwhile, keep what is cached, and nothing outlives its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from serving.constraints import GrammarCompiler, GrammarSpec, compiler, json_spec
from serving.constraints.child import Question, Verdict
from serving.constraints.compiler import GRAMMARS
from serving.errors import QueueFull
from tests.serving.constraints.test_trials import made_for
from tests.serving.tiny import Tiny

PATIENCE = 60.0


@pytest.fixture
async def grammars(tiny: Tiny) -> AsyncIterator[GrammarCompiler]:
    made = made_for(tiny)
    yield made
    made.close()


def _bomb(number: int) -> GrammarSpec:
    """A grammar whose trial takes seconds of a processor, and is refused after them."""
    properties = {f"{number} {index * 7919 % 6007:05}": {"type": "integer"} for index in range(1_500)}
    return json_spec({"type": "object", "properties": properties})


async def test_a_tenant_with_many_heavy_grammars_takes_one_process_and_a_bounded_queue(
    grammars: GrammarCompiler,
) -> None:
    hostile = grammars.of("hostile")
    bombs = [asyncio.create_task(hostile.compile(_bomb(number))) for number in range(GRAMMARS.waiting + 3)]
    await asyncio.sleep(0)
    refused = [task for task in bombs if task.done()]
    assert len(refused) == 2
    assert {str(getattr(task.exception(), "code", "")) for task in refused} == {"tenant_queue_full"}
    assert isinstance(refused[0].exception(), QueueFull)
    good = await asyncio.wait_for(grammars.of("other").compile(json_spec({"type": "boolean"})), PATIENCE)
    assert good.begin() and sum(task.done() for task in bombs) <= 4  # it waited for none but those that ran beside it
    for task in bombs:
        task.cancel()
    await asyncio.gather(*bombs, return_exceptions=True)
    # The trial that ran is ended: the tenant's next grammar waits for no bomb.
    assert (await asyncio.wait_for(hostile.compile(json_spec({"type": "null"})), PATIENCE)).begin()


async def test_a_trial_ends_with_its_caller_and_its_verdict_is_not_kept(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await grammars.compile(json_spec({"type": "null"}))).begin()  # the process is there
    begun, asked = asyncio.Event(), []
    loop, ask = asyncio.get_running_loop(), compiler._Trial.verdict

    def noted(trial: compiler._Trial, question: Question) -> Verdict | None:
        asked.append(trial)
        loop.call_soon_threadsafe(begun.set)
        return ask(trial, question)

    monkeypatch.setattr(compiler._Trial, "verdict", noted)
    leaves = asyncio.create_task(grammars.of("hostile").compile(_bomb(0)))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    async with asyncio.timeout(PATIENCE):
        while asked[0].alive or grammars._threads.shares.held:
            await asyncio.sleep(0.01)
    assert len(grammars._cache) == 1


async def test_a_flood_of_grammars_evicts_nobody_elses(grammars: GrammarCompiler) -> None:
    mine = json_spec({"type": "boolean"})
    kept = await grammars.of("other").compile(mine)
    for number in range(compiler.GRAMMAR_CACHE.places + 10):
        grammars._cache.put(GrammarSpec("regex", f"a{number}"), "hostile", kept)
    assert await grammars.of("other").compile(mine) is kept
    assert len(grammars._cache) == compiler.GRAMMAR_CACHE.places
