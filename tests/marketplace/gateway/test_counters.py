"""Counters in Valkey: exact limits under parallel calls, and messages and answers of several keys together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from django.conf import settings
from redis.asyncio import Redis

from marketplace.gateway.counters import Counters, Payer
from marketplace.gateway.texts import answer_hash, message_hashes
from marketplace.protection.policies import ALARM_AT, DAY_SECONDS, MOST_ANSWERS, WINDOW_DAYS

pytestmark = pytest.mark.asyncio
WINDOW = WINDOW_DAYS * DAY_SECONDS


@pytest_asyncio.fixture
async def valkey() -> AsyncIterator[Redis]:
    found = Redis.from_url(settings.ENV.valkey_url)
    yield found
    await found.aclose()


def payer(*kin: uuid.UUID) -> Payer:
    return Payer(uuid.uuid4(), uuid.uuid4(), kin)


def messages(*numbers: int) -> list[str]:
    return [f"message {number}" for number in numbers]


async def test_a_limit_is_exact_under_parallel_calls_and_what_is_given_back_can_be_taken_again(valkey: Redis) -> None:
    counters, one = Counters(valkey), payer()
    found = await asyncio.gather(*(counters.take(one, limit=40, seconds=DAY_SECONDS) for _ in range(100)))
    taken = [item for item in found if item is not None]
    assert len(taken) == 40
    for item in taken[:2]:
        await counters.give_back(item)
    again = [await counters.take(one, limit=40, seconds=DAY_SECONDS) for _ in range(3)]
    assert [item is not None for item in again] == [True, True, False]
    assert await counters.take(one, limit=1, seconds=DAY_SECONDS, now=0) is not None, "another day"


async def test_kin_share_a_limit(valkey: Redis) -> None:
    counters, one = Counters(valkey), payer()
    twin = Payer(one.model_id, uuid.uuid4(), (one.organization_id,))
    assert await counters.take(one, limit=1, seconds=DAY_SECONDS) is not None
    assert await counters.take(twin, limit=1, seconds=DAY_SECONDS) is None


async def test_the_count_is_of_different_messages_over_two_windows_and_all_kin(valkey: Redis) -> None:
    counters, one = Counters(valkey), payer()
    twin = Payer(one.model_id, uuid.uuid4(), (one.organization_id,))
    assert (await counters.observe(one, messages(1, 2), "", now=WINDOW)).distinct == 2
    assert (await counters.observe(one, messages(2, 3), "", now=2 * WINDOW)).distinct == 3
    assert (await counters.observe(twin, messages(4), "", now=2 * WINDOW)).distinct == 4
    assert (await counters.observe(one, messages(5), "", now=3 * WINDOW)).distinct == 3, "the first window is over"


async def test_answers_come_with_the_alarm_and_stay_few(valkey: Redis) -> None:
    counters, one = Counters(valkey), payer()
    first = await counters.observe(one, messages(*range(ALARM_AT // 2)), "a")
    assert (first.calls, first.answers) == (0, ())
    last = await counters.observe(one, messages(*range(ALARM_AT + 20)), "b")
    assert abs(last.distinct - ALARM_AT - 20) < 10 and (last.calls, sorted(last.answers)) == (2, [1, 1])
    for n in range(2 * MOST_ANSWERS):
        last = await counters.observe(one, messages(0), str(n))
    assert MOST_ANSWERS < len(last.answers) <= MOST_ANSWERS + 2, "more are no closed set, and take no more memory"


async def test_hashes_are_of_the_users_texts_alone_and_lead_back_to_none() -> None:
    chat = b'{"messages":[{"role":"system","content":"%s"},{"role":"user","content":"%s"}]}'
    one = message_hashes(chat % (b"be kind", b"Hello  THERE"))
    assert one == message_hashes(chat % (b"", b"hello there ")) != message_hashes(chat % (b"", b"hello, there"))
    parts = b'{"messages":[{"role":"user","content":[{"type":"text","text":"hello there"}]}]}'
    assert message_hashes(parts) == one and len(one[0]) == 24
    assert (
        len(message_hashes(b'{"prompt":["a","b","A "]}')) == 3
        and len(set(message_hashes(b'{"prompt":["a","A "]}'))) == 1
    )
    assert len(message_hashes(b'{"prompt":[[1,2],[3]]}')) == 2 and len(message_hashes(b'{"prompt":[1,2]}')) == 1
    assert len(message_hashes(b'{"input":["x","y"]}')) == 2
    assert answer_hash("Groceries") == answer_hash(" groceries")


async def test_a_customers_memory_is_bounded(valkey: Redis) -> None:
    counters, one = Counters(valkey), payer()
    for start in range(0, 20_000, 2_000):
        await counters.observe(one, messages(*range(start, start + 2_000)), "")
    (key,) = [key async for key in valkey.scan_iter(f"messages:{one.model_id}:*")]
    assert await valkey.strlen(key) <= 12 * 1024 + 16
