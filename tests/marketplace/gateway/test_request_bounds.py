"""What the gateway decides from a request and a prediction alone: each number below its bound, at it, and above."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest

from billing.pricing import Price
from marketplace.accounts.errors import Refusal
from marketplace.gateway.bounds import widest_json_bytes
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.json_bodies import json_of
from marketplace.gateway.offer_rows import Terms
from marketplace.gateway.offers import Offer
from marketplace.gateway.order import Order
from marketplace.gateway.patience import Patience, patience_with
from marketplace.gateway.principals import Principal
from marketplace.gateway.requests import PredictionRequest, parse_prediction_request

PRICE = Price(1_000_000, 100_000, 3_000_000)
TIERS = {"interactive": "priority", "standard": "default", "batch": "flex"}
LEAST = {"interactive": 10.0, "standard": 20.0, "batch": 60.0}  # seconds to the first token, at least


def parsed(*, chat: bool = True, embedding: bool = False, **fields: Any) -> PredictionRequest:
    asked = {"messages": [{"role": "user", "content": "hi"}]} if chat and not embedding else {}
    body = json.dumps({"model": "maker/thing", **asked, **fields}).encode()
    return parse_prediction_request(body, {}, chat=chat, embedding=embedding)


def order_of(latency_class: str = "standard", *, prompt: int = 0, body: bytes = b"") -> Order:
    offer = Offer(
        model_id=uuid.uuid4(),
        version_id=uuid.uuid4(),
        number=1,
        created=0,
        digest="cd" * 32,
        creator_organization_id=uuid.uuid4(),
        base_fingerprint="ab" * 32,
        cleared=(),
        context_length=2048,
        price_id=1,
        terms=Terms({}, {}, 0, 0),
        split_id=1,
    )
    request = parsed(service_tier=TIERS[latency_class])
    return Order(Principal(uuid.uuid4(), "buyer", None), offer, request, body, b"", PRICE, prompt, 8)


# -- patience -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_class", LEAST)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 1.5, 10.0])
def test_a_stream_must_begin_within_three_times_the_prediction_and_no_sooner_than_its_class_s_least(
    latency_class: str, share: float
) -> None:
    predicted = share * LEAST[latency_class] / 3
    found = patience_with(order_of(latency_class), predicted=predicted, others=True)
    assert found == Patience(2.0, 10.0, pytest.approx(LEAST[latency_class] * max(1.0, share)))


@pytest.mark.parametrize(("tokens", "more"), [(0, 0.0), (100, 1.0), (2_000, 20.0)])
def test_a_stream_has_a_second_more_for_each_hundred_tokens_of_its_prompt(tokens: int, more: float) -> None:
    assert patience_with(order_of(prompt=tokens), predicted=0.0, others=True).begin == 20.0 + more
    assert patience_with(order_of(prompt=tokens), predicted=10.0, others=True).begin == 30.0 + more


@pytest.mark.parametrize(("size", "seconds"), [(0, 0.0), (1 << 20, 1.0), (3 << 20, 3.0)])
def test_the_first_byte_has_a_second_more_for_each_mebibyte_on_its_way(size: int, seconds: float) -> None:
    order = order_of(body=bytes(size))
    assert patience_with(order, predicted=0.0, others=True).first_byte == 2.0 + seconds
    assert patience_with(order, predicted=99.0, others=False) == Patience(10.0 + seconds, 10.0, None)


# -- the cache of rows ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(("after", "loads"), [(1.9, 1), (2.0, 2), (2.5, 2)])
async def test_the_age_of_a_row_counts_from_the_beginning_of_its_load(after: float, loads: int) -> None:
    now, begun = 100.0, list[float]()
    cache: TtlCache[str, int] = TtlCache(seconds=2, size=3, clock=lambda: now)

    async def load() -> int:
        nonlocal now
        begun.append(now)
        now += 1.5  # what changes meanwhile is not missed for longer
        return len(begun)

    assert await cache.get("a", load) == 1
    now = begun[0] + after
    assert await cache.get("a", load) == loads == len(begun)


@pytest.mark.asyncio
@pytest.mark.parametrize(("after", "loads"), [(1.9, 1), (2.0, 2)])
async def test_the_age_of_a_refreshed_row_counts_from_the_beginning_of_the_refresh(after: float, loads: int) -> None:
    now, begun = 100.0, list[float]()
    cache: TtlCache[str, int] = TtlCache(seconds=2, size=3, clock=lambda: now)

    async def load() -> int:
        begun.append(now)
        return 1

    async def load_all(keys: list[str]) -> dict[str, int]:
        nonlocal now
        now += 1.5
        return dict.fromkeys(keys, 2)

    await cache.get("a", load)
    now = 101.0
    await cache.refresh(load_all, asked_within=5)
    now = 101.0 + after
    assert await cache.get("a", load) == (2 if loads == 1 else 1) and len(begun) == loads


# -- requests -------------------------------------------------------------------------------------------------------


def refused(param: str | None = None, **fields: Any) -> bool:
    try:
        parsed(**fields)
    except Refusal as refusal:
        assert refusal.status == 400
        return True
    return False


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({"n": 128}, True),
        ({"n": 129}, False),
        ({"n": 0}, False),
        ({"max_tokens": 0}, False),
        ({"max_tokens": 1}, True),
        ({"max_tokens": 1_000_000}, True),
        ({"max_tokens": 1_000_001}, False),
        ({"safety_identifier": "x" * 64}, True),
        ({"safety_identifier": "x" * 65}, False),
        ({"chat": False, "prompt": ["a"] * 128}, True),
        ({"chat": False, "prompt": ["a"] * 129}, False),
        ({"chat": False, "prompt": ["a"] * 64, "n": 2}, True),
        ({"chat": False, "prompt": ["a"] * 43, "n": 3}, False),
        ({"embedding": True, "input": ["a"] * 2_048}, True),
        ({"embedding": True, "input": ["a"] * 2_049}, False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_request_is_taken_up_to_its_bounds(fields: dict[str, Any], good: bool) -> None:
    assert refused(**fields) is not good


def test_a_request_that_names_no_limit_may_take_512_tokens_of_each_completion() -> None:
    assert parsed(n=3).worst_tokens(100_000) == 3 * 512
    assert parsed(n=3, max_tokens=700).worst_tokens(100_000) == 3 * 700
    assert parsed(n=3, max_tokens=700).worst_tokens(600) == 3 * 600, "no completion is longer than the context"


@pytest.mark.parametrize(("levels", "good"), [(99, True), (100, True), (101, False)])
def test_values_are_nested_a_hundred_levels_deep(levels: int, good: bool) -> None:
    value: object = 1
    for _ in range(levels):
        value = [value]
    body = json.dumps(value).encode()
    if good:
        assert widest_json_bytes(json_of(body)) > levels
    else:
        with pytest.raises(Refusal):
            json_of(body)


def test_a_prediction_has_five_minutes_and_its_hold_half_a_minute_more() -> None:
    before = time.time()
    order = order_of()
    assert before + 300 <= order.deadline <= time.time() + 300
    hold = order.hold_request(idempotency_key=None, replica_id=uuid.uuid4(), base="b", gateway_id=uuid.uuid4())
    assert hold.expires_at.timestamp() == pytest.approx(order.deadline + 30, abs=1e-3)
