"""KV that one replica computes and another pulls: the same tokens, the same bill, nothing for strangers."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.pulls import PullTicket, sign_pull_ticket
from protocol.version import PROTOCOL_VERSION
from serving.core import Delta, Request, SamplingParams
from serving.errors import AdapterRevoked
from serving.platform.kv_reader import Stream, Transport
from tests.serving.harness import GREEDY, running
from tests.serving.platform.pulling import PLATFORM, SCOPE, Pair, Peer, pair
from tests.serving.tiny import ADAPTERS, Tiny


@pytest.fixture
async def two(tiny: Tiny) -> AsyncIterator[Pair]:
    async with pair(tiny) as made:
        yield made


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def charged(deltas: list[Delta]) -> tuple[int, int, int]:
    """The figures of a bill; how many guesses were verified depends on the pace of the machine."""
    usage = deltas[-1].usage
    return usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens


def prompt(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, 259) for _ in range(length)]


@pytest.mark.parametrize("prompts", [25, pytest.param(100, marks=pytest.mark.deep)])
async def test_prompts_get_the_tokens_and_the_bill_of_one_replica(tiny: Tiny, two: Pair, prompts: int) -> None:
    adapters = [None, *ADAPTERS]
    async with running(tiny) as one:
        for number in range(prompts):
            adapter, chance = adapters[number % len(adapters)], random.Random(number)
            # Every third prompt goes on with an earlier one, so that parts of prompts are cached.
            asked = prompt(number // 3 * 3, 70 + number // 3 % 5 * 23) + prompt(number, number % 3 * 21)
            sampling = GREEDY if number % 2 else SamplingParams(temperature=0.9, seed=chance.randrange(1 << 30))
            alone = await one.run(one.request(asked, adapter, tokens=5, sampling=sampling))
            request = two.reader.run.request(asked, adapter, tokens=5, sampling=sampling)
            apart = await two.answer(request, adapter)
            assert tokens(apart) == tokens(alone)
            assert charged(apart) == charged(alone)
    assert two.client.outcomes["pulled"] >= 0.6 * prompts
    assert set(two.client.outcomes) <= {"pulled", "needless"}
    placed = two.reader.run.engine.planner.exchange.counts.placed_blocks
    assert placed == two.source.run.engine.planner.exchange.counts.lent_blocks > 3 * prompts
    for run in (two.source.run, two.reader.run):
        await run.settled()


async def refused(two: Pair, ticket: PullTicket, *, signed_by: Ed25519PrivateKey = PLATFORM) -> None:
    """A pull by this ticket brings nothing, and its prompt is computed as if there were none."""
    chance = random.Random(ticket.jti)
    request = two.reader.run.request(prompt(chance.randrange(1 << 30), 130), "r4", tokens=3)
    await two.prefill(request)
    before = two.counts()
    brought = await two.client.bring(request, ticket, sign_pull_ticket(ticket, signed_by, kid="platform"))
    assert two.counts() == before
    assert brought.cached_as is not None and brought.cached_as < 16  # a first token or two of an earlier prompt
    deltas = await two.reader.run.run(brought)
    assert len(tokens(deltas)) == 3 and deltas[-1].usage.cached_tokens < 16


async def test_what_a_ticket_does_not_name_is_not_lent(two: Pair) -> None:
    another = str(uuid.uuid4())
    now = int(time.time())
    for changes in (
        {"cache_scope": "another"},
        {"adapter": two.source.run.digest("r8-attention")},
        {"adapter": None},
        {"source_id": another},
        {"reader_key": Peer(two.reader.run).key},
        {"source_key": Peer(two.source.run).key},
        {"exp": now - 1, "iat": now - 31},
        {"exp": now + 3600},
        {"protocol_version": PROTOCOL_VERSION - 1},
    ):
        two.source.lease(two.source.run.digest("r8-attention"))
        await refused(two, msgspec.structs.replace(two.ticket("r4"), **changes))
    await refused(two, two.ticket("r4"), signed_by=Ed25519PrivateKey.generate())
    assert two.client.outcomes["pulled"] == 0


async def test_a_ticket_is_good_once_and_only_while_its_source_holds_the_lease(two: Pair) -> None:
    request = two.reader.run.request(prompt(1, 130), "r4")
    await two.prefill(request)
    ticket = two.ticket("r4")
    two.client.layout, layout = "ab" * 32, two.client.layout
    await two.bring(request, two.ticket("r4"))
    assert two.client.outcomes == {"refused": 1}  # KV of another build, or laid out otherwise
    two.client.layout = layout
    await two.bring(request, ticket)
    assert two.client.outcomes == {"refused": 1, "pulled": 1}
    await asyncio.wrap_future(two.reader.run.engine.forget(SCOPE))
    await two.bring(request, ticket)
    assert two.client.outcomes == {"refused": 2, "pulled": 1}
    two.source.leases.drop_all()
    await two.bring(request, two.ticket("r4"))
    assert two.client.outcomes == {"refused": 3, "pulled": 1}


class Held:
    """A transport whose streams stop after some bytes until they are let go."""

    def __init__(self, inner: Transport, first: int) -> None:
        self.inner, self.left = inner, first
        self.reached, self.go = threading.Event(), threading.Event()
        self.broken = False

    def open(self, *arguments: Any) -> tuple[int, Stream]:
        count, self.stream = self.inner.open(*arguments)
        return count, self

    def readinto(self, out: memoryview) -> int:
        if self.left > 0:
            count = self.stream.readinto(out[: self.left])
            self.left -= count
            return count
        self.reached.set()
        assert self.go.wait(20)
        if self.broken:
            raise ConnectionResetError
        return self.stream.readinto(out)

    def interrupt(self) -> None:
        self.go.set()
        self.stream.interrupt()

    def close(self) -> None:
        self.stream.close()


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 64 tokens, so that a short prompt has several."""
    monkeypatch.setattr("serving.platform.kv_runs.RUN_BYTES", 0)


async def held_pull(two: Pair, request: Request) -> tuple[Held, asyncio.Task[Request]]:
    """A pull of which 64 tokens have come, and the first bytes of the next."""
    await two.prefill(request)
    held = Held(two.client.transport, 4 * two.reader.run.engine.planner.exchange.block_bytes + 100)
    two.client.transport = held
    pull = asyncio.create_task(two.bring(request, two.ticket("r4")))
    assert await asyncio.to_thread(held.reached.wait, 20)
    return held, pull


@pytest.mark.usefixtures("small_runs")
async def test_a_peer_that_dies_midway_leaves_what_came_and_the_answer_is_the_same(tiny: Tiny, two: Pair) -> None:
    asked = prompt(2, 300)
    request = two.reader.run.request(asked, "r4", tokens=6)
    held, pull = await held_pull(two, request)
    held.broken = True
    held.go.set()
    brought = await pull
    assert two.client.outcomes == {"broken": 1}
    assert two.reader.run.engine.planner.exchange.counts.placed_blocks == 4
    assert brought.cached_as == 0
    deltas = await two.reader.run.run(brought)
    assert tokens(deltas) == await two.source.run.tokens(asked, "r4", tokens=6, scope="as one replica")
    await two.reader.run.settled()


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("side", ["reader", "source"])
async def test_a_revocation_midway_ends_the_pull_and_leaves_nothing(two: Pair, side: str) -> None:
    request = two.reader.run.request(prompt(3, 300), "r4", tokens=6)
    held, pull = await held_pull(two, request)
    digest = request.adapter.digest
    assert digest is not None
    peer = getattr(two, side)
    peer.leases.revoke([digest])
    await asyncio.wrap_future(peer.run.engine.revoke(digest))
    held.go.set()
    await pull
    keys = [content.key for content in peer.run.engine.planner.tables.contents_of(request)]
    left = await asyncio.wrap_future(peer.run.engine.exchange(lambda one: one.has((SCOPE, digest), keys)))
    assert left == 0
    if side == "reader":
        with pytest.raises(AdapterRevoked):
            await two.reader.run.run(request)
    else:  # what came before is the reader's, whose own lease says how long
        before = two.counts()
        await two.bring(two.reader.run.request(prompt(3, 310), "r4"), two.ticket("r4"))
        assert two.counts() == before
    await two.reader.run.settled()


@pytest.mark.usefixtures("small_runs")
async def test_a_scope_that_is_forgotten_midway_leaves_nothing(two: Pair) -> None:
    request = two.reader.run.request(prompt(4, 300), "r4", tokens=6)
    held, pull = await held_pull(two, request)
    await asyncio.wrap_future(two.reader.run.engine.forget(SCOPE))
    held.go.set()
    await pull
    assert two.reader.run.engine.planner.pool.held == 0
    deltas = await two.reader.run.run(request)
    assert deltas[-1].usage.cached_tokens == 0


@pytest.mark.usefixtures("small_runs")
async def test_a_pull_that_takes_too_long_or_whose_client_left_takes_nothing_more(
    two: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.platform.kv_reader._SHORTEST_SECONDS", 0.3)
    transport = two.client.transport
    _, pull = await held_pull(two, two.reader.run.request(prompt(5, 300), "r4"))
    await pull
    assert two.client.outcomes == {"late": 1}
    two.client.transport = transport
    _, pull = await held_pull(two, two.reader.run.request(prompt(6, 300), "r4"))
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    await two.reader.run.settled()
    assert await asyncio.wrap_future(two.reader.run.engine.exchange(lambda one: one.arrivals)) == 0


async def test_a_source_that_is_away_costs_nothing_but_the_pull(two: Pair) -> None:
    request = two.reader.run.request(prompt(7, 130), "r4")
    await two.prefill(request)
    two.server.close()
    await two.bring(request, two.ticket("r4"))
    assert two.client.outcomes == {"unreachable": 1}


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
async def test_kv_in_fewer_bits_crosses_as_it_is_and_never_into_another_type(tiny: Tiny, kv_dtype: str) -> None:
    asked = prompt(8, 200)
    async with pair(tiny, kv_dtype=kv_dtype) as two:
        request = two.reader.run.request(asked, "r4", tokens=6)
        deltas = await two.answer(request, "r4")
        assert two.client.outcomes == {"pulled": 1}
        assert tokens(deltas) == await two.source.run.tokens(asked, "r4", tokens=6, scope="as one replica")
    async with pair(tiny, {"kv_dtype": "auto"}, kv_dtype=kv_dtype) as two:
        request = two.reader.run.request(asked, "r4", tokens=6)
        await two.answer(request, "r4")
        assert two.client.outcomes == {"refused": 1}
        two.client.layout = two.server.layout  # a reader that lies about it finds nothing: its keys differ
        await two.answer(two.reader.run.request(prompt(9, 200), "r4", tokens=6), "r4")
        assert two.client.outcomes == {"refused": 1, "nothing": 1}


async def test_a_conversation_is_handed_over_by_the_key_of_its_last_block(two: Pair) -> None:
    shared = prompt(10, 40)
    for scope, seed, contract in (("scope", 11, 0), ("scope", 12, 40), ("another", 13, 40)):
        asked = two.source.run.request(shared + prompt(seed, 90), "r4", tokens=2, scope=scope)
        await two.prefill(replace(asked, shared_tokens=contract))
    found = await asyncio.wrap_future(two.source.run.engine.exchange(lambda one: one.hottest(2)))
    assert [(content.scope, tokens) for content, tokens in found] == [("another", 128), ("scope", 128)]
    content, _ = found[1]
    ticket = two.ticket("r4", scope="scope")
    token = sign_pull_ticket(ticket, PLATFORM, kid="platform")
    await two.client.fetch(ticket, token, content.key)
    assert two.client.outcomes == {"pulled": 1} and two.counts()[1] == 8
    request = two.reader.run.request(shared + prompt(12, 90), "r4", tokens=2)
    deltas = await two.reader.run.run(replace(request, shared_tokens=40))
    assert deltas[-1].usage.cached_tokens == 128

    # Neither another scope's conversation nor tokens that are not its own.
    ticket = two.ticket("r4", scope="scope")
    await two.client.fetch(ticket, sign_pull_ticket(ticket, PLATFORM, kid="platform"), found[0][0].key)
    assert two.client.outcomes == {"pulled": 1, "broken": 1} and two.counts()[1] == 8
    await two.source.run.settled()
