"""A replica whose KV pool is too small for its documents, with a disk below it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from serving.errors import AdapterRevoked, ConfigError
from serving.kv.level import Level
from serving.kv.spill import DiskStore
from serving.runner.cpu import CpuRunner
from serving.runner.torch_runner import TorchRunner
from tests.serving.harness import Running, running
from tests.serving.tiny import Tiny

# Of 25 blocks each; the pool holds 85.
DOCUMENTS = [[3 + (17 * n + 7 * i + i * i) % 250 for i in range(402)] for n in range(6)]


@pytest.fixture(params=["C kernels"])
async def run(
    request: pytest.FixtureRequest, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    if request.param == "torch":
        monkeypatch.setattr("serving.runner.load_library", lambda: None)
    # On this model computing is as fast as a disk.
    monkeypatch.setattr("serving.scheduler.restores.patience_for", lambda *seconds: 10.0)
    settings = {"kv_cache_mb": 1, "elastic_memory": False, "kv_disk": tmp_path, "kv_disk_gb": 0.02}
    async with running(tiny, **settings) as run:
        assert isinstance(run.engine.runner, TorchRunner if request.param == "torch" else CpuRunner)
        yield run
    assert not list(tmp_path.iterdir())


def disk(run: Running) -> Level:
    (level,) = run.engine.planner.restores.tiers.levels
    return level


async def ask(
    run: Running, document: list[int], adapter: str | None = None, scope: str = "scope"
) -> tuple[list[int], int]:
    """Return the tokens of an answer, and how many of the prompt were cached."""
    deltas = await run.run(run.request(document, adapter, tokens=6, scope=scope))
    return [token for delta in deltas for token in delta.token_ids], deltas[-1].usage.cached_tokens


async def fill(run: Running, adapter: str | None = None) -> list[list[int]]:
    """Ask about every document, so that the first are spilled."""
    answers = []
    for document in DOCUMENTS:
        answers.append((await ask(run, document, adapter))[0])
        await saved(run)  # a busy disk takes no more
    return answers


async def saved(run: Running) -> None:
    """Return when no block is on its way to the disk."""
    for _ in range(500):
        if all(copy.state.value == "spilled" for copy in list(disk(run).copies.values())):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the disk did not come to rest")


@pytest.mark.parametrize("run", ["C kernels", "torch"], indirect=True)
async def test_a_restored_prefix_gives_the_same_tokens_and_is_billed_as_cached(run: Running) -> None:
    before = await fill(run)
    assert disk(run).counts.spilled_blocks >= 50
    for document, tokens in zip(DOCUMENTS, before, strict=True):
        again, cached = await ask(run, document)
        assert again == tokens
        assert cached >= 25 * 16 - 5 * 16  # a quarter of the pool is the most that is restored
        await saved(run)
    assert disk(run).counts.restored_blocks > 50
    await run.settled()


async def test_no_prefix_crosses_scope_or_adapter_on_the_disk(run: Running) -> None:
    await fill(run, "r4")
    restored = disk(run).counts.restored_blocks
    for adapter, scope in (("r4", "another"), ("r8-attention", "scope"), (None, "scope")):
        _, cached = await ask(run, DOCUMENTS[0], adapter, scope)
        assert cached == 0
    assert disk(run).counts.restored_blocks == restored
    _, cached = await ask(run, DOCUMENTS[1], "r4")
    assert cached > 0


async def test_a_revoked_adapter_leaves_nothing_that_opens(run: Running) -> None:
    await fill(run, "r4")
    digest = run.digest("r4")
    assert digest is not None and disk(run).copies
    await asyncio.wrap_future(run.engine.revoke(digest))
    store = disk(run).store
    assert isinstance(store, DiskStore)
    assert not disk(run).copies and not len(store.keys)
    with pytest.raises(AdapterRevoked):
        await ask(run, DOCUMENTS[0], "r4")
    await asyncio.wrap_future(run.engine.readmit(digest))
    _, cached = await ask(run, DOCUMENTS[0], "r4")
    assert cached == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kv_disk_gb": 1.0}, "one needs the other"),
        ({"kv_disk": Path("/")}, "one needs the other"),
        ({"kv_disk": Path("/"), "kv_disk_gb": 1.0, "prefix_caching": False}, "--no-prefix-caching"),
        ({"kv_disk_gb": -1.0}, "at least 0"),
        ({"kv_disk": Path("/missing"), "kv_disk_gb": 1.0}, "--kv-disk /missing: not a folder"),
        ({"kv_host_gb": 1.0}, "raise --kv-cache-mb instead"),
    ],
)
async def test_settings_that_cannot_work_end_the_start_by_name(tiny: Tiny, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        async with running(tiny, **settings):
            raise AssertionError("it started")
