"""Requests that the gateway refuses before any work: nothing is held, nothing reaches a replica."""

from __future__ import annotations

from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from marketplace.accounts.services import create_api_key, revoke_api_key
from marketplace.catalog.models import Model, Version
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money

pytestmark = pytest.mark.asyncio(loop_scope="module")
CREDENTIALS = [
    ("", "not_authenticated"),
    ("Basic abc", "invalid_api_key"),
    ("Bearer nonsense", "invalid_api_key"),
    ("Bearer ik_aaaaaaaaaaaa_" + "x" * 43, "invalid_api_key"),
    ("Bearer ikp_abc.def.ghi", "invalid_api_key"),
]
NONSENSE = [
    b"",
    b"[]",
    b"{nonsense",
    b'{"model": 3, "messages": [{"role":"user","content":"x"}]}',
    b'{"model": "maker/thing"}',
    b'{"model": "maker/thing", "messages": []}',
    b'{"model": "maker/thing", "messages": ["x"]}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":7}]}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "max_tokens": -1}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "max_tokens": true}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "stream": "yes"}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "n": 0}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "n": 129}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "n": true}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "n": 2, "best_of": 1}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "best_of": 129}',
    b'{"model": "maker/thing", "messages": [{"role":"user","content":"x"}], "best_of": true}',
]


async def test_bad_credentials_are_401_and_touch_nothing(world: World) -> None:
    for authorization, code in CREDENTIALS:
        headers = {"authorization": authorization}
        answer = await world.http.post("/v1/chat/completions", json=world.body(), headers=headers)
        assert (answer.status, (await answer.json())["error"]["code"]) == (401, code), authorization
        assert await money(world) == UNTOUCHED | {"holds": []}, authorization


async def test_revoked_expired_and_unscoped_keys_are_refused(world: World) -> None:
    def keys() -> list[str]:
        made = []
        for name, scopes in (("revoked", ["predict"]), ("expired", ["predict"]), ("scope", ["publish"])):
            key, text = create_api_key(organization=world.consumer, name=name, scopes=scopes, created_by=None)
            if name == "revoked":
                revoke_api_key(key=key)
            if name == "expired":
                type(key).objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
            made.append(text)
        return made

    statuses = []
    for text in await sync_to_async(keys)():
        answer = await world.http.post(
            "/v1/chat/completions", json=world.body(), headers={"authorization": f"Bearer {text}"}
        )
        statuses.append(answer.status)
    assert statuses == [401, 401, 403]
    assert world.replica.served == []


async def test_another_tenants_private_model_does_not_exist(world: World) -> None:
    await sync_to_async(Model.objects.update)(visibility="private")
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    listing = await (await world.http.get("/v1/models")).json()
    assert answer.status == 404 and listing["data"] == []
    assert await money(world) == UNTOUCHED | {"holds": []}


async def test_revoked_and_unknown_versions_are_refused(world: World) -> None:
    unknown = await world.http.post("/v1/chat/completions", json=world.body(model="maker/thing@7"))
    await sync_to_async(Version.objects.update)(state="revoked")
    revoked = await world.http.post("/v1/chat/completions", json=world.body())
    assert (unknown.status, revoked.status) == (404, 403)
    assert (await revoked.json())["error"]["code"] == "model_revoked"
    assert world.replica.served == []


async def test_nonsense_is_400_in_openais_envelope(world: World) -> None:
    for body in NONSENSE:
        answer = await world.http.post("/v1/chat/completions", data=body)
        assert answer.status == 400, body
        assert set((await answer.json())["error"]) == {"message", "type", "param", "code", "request_id"}, body
        assert await money(world) == UNTOUCHED | {"holds": []}, body


async def test_a_huge_body_is_413(world: World) -> None:
    answer = await world.http.post("/v1/chat/completions", data=b'{"x":"' + b"a" * (1 << 20) + b'"}')
    assert answer.status == 413


async def test_an_unmetered_endpoint_is_refused_by_name(world: World) -> None:
    answer = await world.http.post("/v1/embeddings", json={"model": "maker/thing", "input": "a"})
    assert answer.status == 404 and (await answer.json())["error"]["code"] == "not_offered"
    assert await money(world) == UNTOUCHED | {"holds": []}
