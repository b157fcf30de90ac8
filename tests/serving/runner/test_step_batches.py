"""Steps of the same rows share their metadata, but never across a change of the pool."""

from __future__ import annotations

import random

import pytest

from lora_kernels import AdapterPool
from serving.core import AdapterRef, Request, Sequence
from serving.runner.adapters import StepBatches
from serving.steps import Chunk
from tests.lora_kernels.factories import make_adapter, one_site
from tests.serving.runner.driver import GREEDY, Adapters, NoText


def _chunk(slot: int | None, count: int = 1, start: int = 0) -> Chunk:
    ref = AdapterRef(None if slot is None else str(slot))
    tokens = [1] * (start + count)
    request = Request("id", "tenant", "scope", ref, tuple(tokens), GREEDY, 1)
    return Chunk(Sequence(request, 0.0, tokens, NoText(), random.Random(0)), start, count)


@pytest.fixture
def pool() -> AdapterPool:
    spec = one_site(32, (32,))
    pool = AdapterPool(spec, 6, 3)
    for slot in range(2):
        pool.load(slot, make_adapter(spec, 8, seed=slot))
    return pool


def test_the_next_step_of_the_same_rows_shares_the_metadata(pool: AdapterPool) -> None:
    batches = StepBatches(Adapters(pool))
    first = batches.of([_chunk(0), _chunk(None), _chunk(1)])
    assert first is not None
    assert batches.of([_chunk(0, start=1), _chunk(None, start=1), _chunk(1, start=1)]) is first


def test_other_rows_and_a_changed_pool_get_metadata_of_their_own(pool: AdapterPool) -> None:
    batches = StepBatches(Adapters(pool))
    first = batches.of([_chunk(0), _chunk(1)])
    more = batches.of([_chunk(0), _chunk(1, count=3)])
    assert first is not None and more is not None and more is not first
    assert more.slots_by_row() == [0, 1, 1, 1]
    pool.evict(1)
    pool.load(1, make_adapter(pool.spec, 24, seed=9))
    assert more.is_stale
    again = batches.of([_chunk(0), _chunk(1, count=3)])
    assert again is not None and again is not more
    assert again.max_pages == 2


def test_rows_without_adapters_have_none(pool: AdapterPool) -> None:
    batches = StepBatches(Adapters(pool))
    assert batches.of([_chunk(0)]) is not None
    assert batches.of([_chunk(None), _chunk(None)]) is None
