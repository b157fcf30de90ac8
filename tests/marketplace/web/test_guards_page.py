"""The page of a key and the page of a model: what is done about personal data, and how often it was."""

from __future__ import annotations

import asyncio

import pytest
from django.conf import settings
from django.urls import reverse
from redis.asyncio import Redis

from marketplace.accounts.models import ApiKey
from marketplace.guards.counts import add_counts
from marketplace.guards.policies import KINDS
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.django_db
PASSES = dict.fromkeys(KINDS, "pass")
MODEL = "/dashboard/models/transactions"


def key_page(world: World) -> str:
    return reverse("web:key", kwargs={"key_id": world.key.pk})


def count(owner: str, owner_id: object, *acts: str) -> None:
    async def add() -> None:
        valkey = Redis.from_url(settings.ENV.valkey_url)
        await add_counts(valkey, [(owner, owner_id)], acts)  # type: ignore[list-item]
        await valkey.aclose()

    asyncio.run(add())


def test_a_policy_is_set_on_the_keys_page_and_shown_with_its_counts(world: World) -> None:
    client = world.client(world.consumer)
    count("key", world.key.pk, "mask:email", "mask:email", "refuse:card")
    answer = client.post(f"{key_page(world)}/guards", {**PASSES, "email": "mask", "card": "refuse"}, follow=True)
    assert ApiKey.objects.get(pk=world.key.pk).guards == {"card": "refuse", "email": "mask"}
    rows = {field.name: count for field, count in answer.context["guards"]["rows"]}
    assert (rows["email"].masked, rows["card"].refused, rows["phone"]) == (2, 1, None)
    assert "guarded" in client.get("/dashboard/keys").content.decode()


def test_a_key_is_created_masked(world: World) -> None:
    made = {"name": "m", "scopes": ["predict"], "days": "0", "mask": ["email", "card"]}
    assert world.client(world.consumer).post("/dashboard/keys", made).status_code == 201
    assert ApiKey.objects.get(name="m").guards == {"email": "mask", "card": "mask"}


def test_a_creator_sets_a_policy_that_everybody_reads(world: World) -> None:
    client = world.client(world.creator)
    count("model", world.model.pk, "refuse:card")
    answer = client.post(f"{MODEL}/guards", {**PASSES, "card": "refuse", "email": "mask"}, follow=True)
    rows = {field.name: count for field, count in answer.context["guards"]["rows"]}
    assert rows["card"].refused == 1
    public = world.client(None).get("/models/ledgerline/transactions").content.decode()
    assert "refuses card numbers; masks e-mail addresses." in public


def test_nothing_changes_without_the_package_and_the_page_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marketplace.guards.policies._MODULE", "presidio_that_is_not_there")
    client = world.client(world.consumer)
    answer = client.post(f"{key_page(world)}/guards", {**PASSES, "email": "mask"})
    assert answer.status_code == 400 and "presidio-analyzer" in answer.content.decode()
    refused = client.post("/dashboard/keys", {"name": "m", "scopes": ["predict"], "days": "0", "mask": ["email"]})
    assert refused.status_code == 400 and "presidio-analyzer" in refused.content.decode()
    changed = world.client(world.creator).post(f"{MODEL}/guards", {**PASSES, "email": "mask"}, follow=True)
    assert "Nothing was changed" in changed.content.decode()
    world.key.refresh_from_db()
    world.model.refresh_from_db()
    assert world.key.guards == world.model.guards == {}


def test_outsiders_neither_read_nor_set_a_policy(world: World) -> None:
    chosen = {**PASSES, "email": "mask"}
    for user in (world.stranger, world.creator):
        assert world.client(user).get(key_page(world)).status_code == 404
        assert world.client(user).post(f"{key_page(world)}/guards", chosen).status_code == 404
    for user in (world.consumer, world.stranger):
        assert world.client(user).post(f"{MODEL}/guards", chosen).status_code == 404
    assert world.client(world.developer).post(f"{key_page(world)}/guards", chosen).status_code == 404
    assert world.client(None).post(f"{key_page(world)}/guards", chosen).status_code == 302
    world.key.refresh_from_db()
    world.model.refresh_from_db()
    assert world.key.guards == world.model.guards == {}


def test_the_page_stays_when_the_counters_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marketplace.web.guards_context.counts_of", lambda *_: None)
    text = world.client(world.consumer).get(key_page(world)).content.decode()
    assert "cannot be read right now" in text
