"""Rules against copying at the gateway: introductory allowances, and customers whose calls look like a copy's."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone
from redis.asyncio import Redis as Valkey
from redis.exceptions import ConnectionError as Away

from billing.models import UsageDay
from marketplace.accounts.models import Membership, Organization, User
from marketplace.accounts.services import create_api_key
from marketplace.gateway import protection
from marketplace.gateway.counters import Counters, Payer
from marketplace.protection import policies, services
from marketplace.protection.models import Customer, Protection
from tests.database import as_owner
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money, until, until_closed

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"


@sync_to_async
def protect(world: World, *, calls_per_day: int | None = None, on_copying: str = "") -> None:
    services.set_protection(model=world.model, logprobs_open=False, calls_per_day=calls_per_day, on_copying=on_copying)
    world.let_pass(1)


@sync_to_async
def customer(world: World) -> Customer:
    return Customer.objects.get(organization=world.consumer)


async def ask(world: World, text: str = "hi", key: str | None = None, **changes: Any) -> tuple[int, Any, Any]:
    """Make a call that sees what a creator has just decided; return status, error and headers."""
    world.let_pass(protection.PAYER_SECONDS)
    body = world.body(messages=[{"role": "user", "content": text}], **changes)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with world.http.post(CHAT, json=body, headers=headers) as answer:
        await answer.read()
        error = None if answer.status == 200 else (await answer.json())["error"]
        return answer.status, error, answer.headers


async def counted(world: World, distinct: int) -> None:
    """Wait until so many different messages are counted: nobody waits for that, and so the test has to."""

    async def there() -> bool:
        return await distinct_of(world) == distinct

    await until(there)


async def distinct_of(world: World) -> int:
    async with Valkey.from_url(settings.ENV.valkey_url) as valkey:
        keys = [key async for key in valkey.scan_iter(f"messages:{world.model.pk}:*")]
        return int(await valkey.pfcount(*keys)) if keys else 0


async def test_a_model_without_rules_asks_nobody_and_counts_nothing(world: World, monkeypatch: Any) -> None:
    async def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a call of a model without rules")

    for name in ("_load", "_observe"):
        monkeypatch.setattr(protection.Protection, name, never)
    assert (await ask(world))[0] == 200
    assert not await sync_to_async(Customer.objects.exists)() and await distinct_of(world) == 0


async def test_a_new_customer_makes_as_many_calls_a_day_as_the_creator_allows(world: World) -> None:
    await protect(world, calls_per_day=3)
    answers = await asyncio.gather(*(ask(world, f"hi {n}") for n in range(8)))
    assert sorted(status for status, _, _ in answers) == [200] * 3 + [429] * 5
    error, headers = next((error, headers) for status, error, headers in answers if status == 429)
    assert error["code"] == "introductory_allowance" and "3 calls a day of a new customer" in error["message"]
    assert "/models/maker/thing#protection" in error["message"]
    assert 0 < int(headers["retry-after"]) <= policies.DAY_SECONDS
    after = await until_closed(world)
    assert after["usage"] == 3 and len(after["holds"]) == 3, "nothing was held for the others"


async def test_a_call_that_is_refused_later_is_given_back(world: World) -> None:
    await protect(world, calls_per_day=1)
    status, error, _ = await ask(world, max_tokens=2_000)
    assert (status, error["code"]) == (402, "insufficient_funds")

    async def answered() -> bool:
        return (await ask(world))[0] == 200

    await until(answered)
    assert (await ask(world))[1]["code"] == "introductory_allowance"


async def test_it_doubles_each_week_and_rises_by_the_creators_click(world: World) -> None:
    await protect(world, calls_per_day=1)
    assert [(await ask(world))[0] for _ in range(2)] == [200, 429]
    week_ago = timezone.now() - timedelta(days=8)
    await sync_to_async(Customer.objects.update)(first_seen_at=week_ago)
    assert [(await ask(world))[0] for _ in range(2)] == [200, 429]
    row = await sync_to_async(services.ask_for_more)(model=world.model, organization=world.consumer, calls_per_day=4)
    await sync_to_async(services.answer_customer)(customer=row, answer="grant")
    assert [(await ask(world))[0] for _ in range(3)] == [200, 200, 429]
    await sync_to_async(services.answer_customer)(customer=row, answer="trust")
    assert [(await ask(world))[0] for _ in range(6)] == [200] * 6


async def test_an_earlier_customer_is_no_new_one(world: World) -> None:
    day = (timezone.now() - timedelta(days=15)).date()

    @sync_to_async
    def bought() -> None:
        with as_owner():
            UsageDay.objects.create(
                day=day,
                organization_id=world.consumer.pk,
                model_id=world.model.pk,
                latency_class="standard",
                model_name="maker/thing",
                predictions=1,
                prompt_tokens=1,
                cached_tokens=0,
                completion_tokens=1,
                charged_nano_usd=1,
            )

    await bought()
    await protect(world, calls_per_day=1)
    assert [(await ask(world))[0] for _ in range(5)] == [200] * 4 + [429]
    assert (await customer(world)).first_seen_at.date() == day


async def test_organizations_with_a_member_in_common_share_an_allowance(world: World) -> None:
    @sync_to_async
    def second() -> str:
        person = User.objects.create_user("one@person.example")
        twin = Organization.objects.create(slug="twin", name="Twin")
        Membership.objects.create(organization=world.consumer, user=person)
        Membership.objects.create(organization=twin, user=person)
        return create_api_key(organization=twin, name="t", scopes=["predict"], created_by=None)[1]

    twin = await second()
    await protect(world, calls_per_day=2)
    assert [(await ask(world))[0] for _ in range(2)] == [200, 200]
    assert (await ask(world, key=twin))[1]["code"] == "introductory_allowance"


async def test_the_creators_own_organization_is_not_counted(world: World) -> None:
    await protect(world, calls_per_day=1, on_copying="stop")
    await sync_to_async(type(world.key).objects.update)(organization=world.creator)
    assert {(await ask(world))[1]["code"] for _ in range(3)} == {"insufficient_funds"}
    assert not await sync_to_async(Customer.objects.exists)()


async def test_different_messages_are_counted_and_the_same_ones_are_not(world: World) -> None:
    await protect(world, on_copying="tell")
    for text in ("One bakery", "one  BAKERY\n", "another", "ONE BAKERY"):
        assert (await ask(world, text, stream=text == "another"))[0] == 200
    await counted(world, 2)
    row = await customer(world)
    assert row.noticed_at is None


async def test_the_answer_to_each_message_is_counted_whole_or_streamed(world: World) -> None:
    await protect(world, on_copying="tell")
    world.replica.finish = "stop"
    for stream in (False, True):
        assert (await ask(world, f"message {stream}", stream=stream))[0] == 200
    await counted(world, 2)
    async with Valkey.from_url(settings.ENV.valkey_url) as valkey:
        (key,) = [key async for key in valkey.scan_iter(f"answers:{world.model.pk}:*")]
        fields = await valkey.hgetall(key)
        assert int(fields.pop(b"calls")) == 2
        assert list(fields.values()) == [b"2"], "the replica gave the same answer twice"
        assert await valkey.ttl(key) > policies.WINDOW_DAYS * policies.DAY_SECONDS


@pytest.mark.parametrize("measure", ["tell", "slow", "ask", "stop"])
async def test_a_copier_is_noticed_and_the_creators_rule_applies(
    world: World, measure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marketplace.gateway.counters.ALARM_AT", 4)
    monkeypatch.setattr(policies, "ALARM_AT", 4)
    monkeypatch.setattr(policies, "ASK_CALLS_PER_DAY", 2)
    await protect(world, on_copying=measure)
    for n in range(4):
        assert (await ask(world, f"message {n}"))[0] == 200

    async def noticed() -> bool:
        return (await customer(world)).noticed_at is not None

    await until(noticed)
    row = await customer(world)
    assert (row.noticed_distinct, row.noticed_calls) == (4, 4)
    await until_closed(world)
    before = await money(world)
    results = [await ask(world, f"more {n}") for n in range(3)]
    codes = [error and error["code"] for _, error, _ in results]
    assert (
        codes
        == {
            "tell": [None] * 3,
            "slow": [None, "extraction_slowed", "extraction_slowed"],
            "ask": [None, None, "extraction_asked"],
            "stop": ["extraction_stopped"] * 3,
        }[measure]
    )
    if measure == "stop":
        assert results[0][0] == 403 and "/models/maker/thing#protection" in results[0][1]["message"]
        assert await money(world) == before, "what was refused cost nothing"
    await sync_to_async(services.answer_customer)(customer=row, answer="trust")
    assert (await ask(world, "after the click"))[0] == 200


async def test_several_keys_and_organizations_of_one_person_are_one_copier(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marketplace.gateway.counters.ALARM_AT", 4)
    monkeypatch.setattr(policies, "ALARM_AT", 4)

    @sync_to_async
    def others() -> str:
        person = User.objects.create_user("one@person.example")
        twin = Organization.objects.create(slug="twin", name="Twin")
        for organization in (world.consumer, twin):
            Membership.objects.create(organization=organization, user=person)
        return create_api_key(organization=world.consumer, name="2", scopes=["predict"], created_by=None)[1]

    second_key = await others()
    await protect(world, on_copying="tell")
    for n in range(3):
        assert (await ask(world, f"message {n}", key=second_key if n % 2 else None))[0] == 200
    await counted(world, 3)
    twin = await sync_to_async(Organization.objects.get)(slug="twin")
    await sync_to_async(type(world.key).objects.filter(pk=world.key.pk).update)(organization=twin)
    world.let_pass(2)
    await ask(world, "no credit there: refused, and not counted")
    assert await distinct_of(world) == 3
    async with Valkey.from_url(settings.ENV.valkey_url) as valkey:
        found = await Counters(valkey).observe(Payer(world.model.pk, twin.pk, (world.consumer.pk,)), ["another"], "")
    assert found.distinct == 4 and policies.is_copying(found)


async def test_calls_pass_while_valkey_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await protect(world, calls_per_day=1, on_copying="tell")
    asked = 0

    async def away(*_: Any, **__: Any) -> None:
        nonlocal asked
        asked += 1
        raise Away

    with monkeypatch.context() as patched:
        patched.setattr(Valkey, "execute_command", away)
        assert [(await ask(world))[0] for _ in range(3)] == [200] * 3
    assert asked >= 6, "each call is counted, and its message"
    assert [(await ask(world))[0] for _ in range(2)] == [200, 429], "none of the three was counted"


async def test_a_new_model_of_the_api_starts_with_telling_alone(world: World) -> None:
    await sync_to_async(services.protect_new_model)(world.model)
    row = await sync_to_async(Protection.objects.get)()
    assert (row.logprobs_open, row.calls_per_day, row.on_copying) == (False, None, "tell")
    assert (await money(world)) == UNTOUCHED | {"holds": []}
