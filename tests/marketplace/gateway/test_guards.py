"""Guard policies of a key and of a model: refused before any hold, counted for both, never silently left out."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from marketplace.accounts.services import revoke_api_key, set_key_guards
from marketplace.guards.counts import Count
from marketplace.guards.finder import Finder, FinderBusy, FinderFailed, FinderMissing
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money
from tests.marketplace.gateway.masking import (
    CARD,
    EMAIL,
    TEXT,
    SharedFinder,
    chat,
    counted,
    guard_key,
    guard_model,
    use,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
NOTHING = UNTOUCHED | {"holds": []}


@pytest.fixture
def finder(warm_finder: Finder) -> SharedFinder:
    return SharedFinder(warm_finder)


@pytest.fixture(autouse=True)
def _guarding(world: World, finder: SharedFinder) -> None:
    use(world, finder)


async def test_a_model_that_refuses_cards_refuses_them_for_nothing_and_both_sides_see_it(world: World) -> None:
    await guard_model(world, {"card": "refuse"})
    answer = await world.http.post(CHAT, json=chat(world))
    text = await answer.text()
    assert answer.status == 400 and (await answer.json())["error"]["code"] == "guard_refused"
    assert "refuse:card" in text and "creator" in text and CARD not in text
    assert await money(world) == NOTHING and not world.replica.received
    assert await counted(world, "model") == await counted(world, "key") == [Count("card", 0, 1)]
    allowed = await world.http.post(CHAT, json=chat(world, EMAIL))
    assert allowed.status == 200 and EMAIL in world.replica.received[-1], "the creator says nothing about addresses"


async def test_a_key_that_refuses_says_so(world: World) -> None:
    await guard_key(world, {"email": "refuse"})
    answer = await world.http.post(CHAT, json=chat(world))
    assert answer.status == 400 and "API key" in await answer.text()
    assert await counted(world, "key") == [Count("email", 0, 1)] and await counted(world, "model") == []


async def test_the_stricter_policy_wins(world: World) -> None:
    await guard_key(world, {"email": "mask", "card": "mask"})
    await guard_model(world, {"card": "refuse"})
    assert (await world.http.post(CHAT, json=chat(world))).status == 400
    await guard_model(world, {"phone": "mask"})
    assert (await world.http.post(CHAT, json=chat(world))).status == 200
    received = world.replica.received[-1]
    assert "<EMAIL_1> about <CARD_1>, or call <PHONE_1>" in received


async def test_a_quote_is_guarded_too(world: World) -> None:
    await guard_model(world, {"card": "refuse"})
    assert (await world.http.post("/v1/quote", json=chat(world))).status == 400


@pytest.mark.parametrize(
    ("failure", "code"),
    [(FinderMissing, "masking_unavailable"), (FinderBusy, "masking_busy"), (FinderFailed, "masking_failed")],
)
async def test_what_cannot_be_searched_is_not_sent_on(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: type[Exception], code: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(Finder, "find", fail)
    await guard_key(world, {"email": "mask"})
    answer = await world.http.post(CHAT, json=chat(world))
    error = (await answer.json())["error"]
    assert answer.status == 503 and error["code"] == code
    assert ("presidio-analyzer" in error["message"]) == (failure is FinderMissing)
    assert await money(world) == NOTHING and not world.replica.received


async def test_a_policy_bites_within_two_seconds_of_being_set(world: World) -> None:
    assert (await world.http.post(CHAT, json=chat(world, TEXT))).status == 200
    await sync_to_async(set_key_guards)(key=world.key, guards={"card": "refuse"})
    world.let_pass(2)
    assert (await world.http.post(CHAT, json=chat(world, TEXT))).status == 400


async def test_a_key_in_use_is_dead_within_two_seconds_of_its_revocation(world: World) -> None:
    assert (await world.http.post(CHAT, json=world.body())).status == 200
    await sync_to_async(revoke_api_key)(key=world.key)
    world.let_pass(2)
    spent = await money(world)
    assert (await world.http.post(CHAT, json=world.body())).status == 401
    assert await money(world) == spent
