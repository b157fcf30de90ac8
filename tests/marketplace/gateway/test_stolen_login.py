"""The gateway spends, and sends prompts, for rows of the platform alone: its own statements check the seals too."""

from __future__ import annotations

import secrets
import uuid
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from marketplace.accounts.models import Membership, User
from marketplace.accounts.playground_tokens import issue_playground_token
from marketplace.accounts.seals import SealBroken
from marketplace.vault.models import PlatformKey
from marketplace.vault.sessions import TICKET_KEYS_SQL
from tests.marketplace import thief
from tests.marketplace.gateway.conftest import FINGERPRINT, UNTOUCHED, World, money

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"

change, run = sync_to_async(thief.change), sync_to_async(thief.run)


@pytest.mark.parametrize(
    "changed",
    [
        {"allowed_models": ["maker/thing", "maker/other"]},
        {"scopes": ["predict", "publish"]},
        {"expires_at": "2999-01-01T00:00:00Z"},
        {"created_by_id": None, "first_key_id": None, "guards": {"email": "mask"}},
    ],
)
async def test_a_key_that_was_changed_past_the_platform_spends_nothing(world: World, changed: dict[str, Any]) -> None:
    await change("accounts_apikey", "id = %s", world.key.pk, **changed)
    answer = await world.http.post(CHAT, json=world.body())
    assert (answer.status, (await answer.json())["error"]["code"]) == (401, "invalid_api_key")
    assert await money(world) == {**UNTOUCHED, "holds": []}


async def test_a_key_that_was_moved_spends_nothing_of_the_other_organization(world: World) -> None:
    await change("accounts_apikey", "id = %s", world.key.pk, organization_id=world.creator.pk)
    assert (await world.http.post(CHAT, json=world.body())).status == 401
    assert await money(world) == {**UNTOUCHED, "holds": []}


async def test_a_listing_that_was_given_to_another_creator_earns_nothing(world: World) -> None:
    await change("catalog_model", "true", organization_id=world.consumer.pk)
    await change("accounts_organization", "id = %s", world.creator.pk, slug="former")
    await change("accounts_organization", "id = %s", world.consumer.pk, slug="maker")
    assert (await world.http.post(CHAT, json=world.body())).status == 403
    assert await money(world) == {**UNTOUCHED, "holds": []}


async def test_no_prompt_goes_to_a_replica_that_did_not_register(world: World) -> None:
    await run(
        "INSERT INTO vault_replica (id, name, url, base_fingerprint, hpke_public_key, receipt_public_key, evidence,"
        " session_digest, registered_at, last_seen_at, stats, role, transfer_url, seal)"
        " SELECT %s, 'thief', url, %s, hpke_public_key, receipt_public_key, evidence, session_digest, now(), now(),"
        " '{}', 'both', '', seal FROM vault_replica LIMIT 1",
        *(uuid.uuid4(), FINGERPRINT),
    )
    await change("vault_replica", "name <> 'thief'", url="http://127.0.0.1:1")
    answer = await world.http.post(CHAT, json=world.body())
    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "no_replica")
    assert await money(world) == {**UNTOUCHED, "holds": []}


async def test_the_playground_spends_for_members_of_the_platform_alone(world: World) -> None:
    def stranger() -> str:
        person = User.objects.create_user("thief@example.com", "correct horse battery")
        other = Membership.objects.filter(organization=world.consumer).values_list("seal", flat=True).first()
        thief.run(
            "INSERT INTO accounts_membership (organization_id, user_id, role, created_at, seal)"
            " VALUES (%s, %s, 'owner', now(), %s)",
            *(world.consumer.pk, person.pk, other or secrets.token_bytes(32)),
        )
        return issue_playground_token(user=person, organization=world.consumer)

    token = await sync_to_async(stranger)()
    answer = await world.http.post(CHAT, json=world.body(), headers={"authorization": f"Bearer {token}"})
    assert (answer.status, (await answer.json())["error"]["code"]) == (403, "record_not_authentic")
    assert await money(world) == {**UNTOUCHED, "holds": []}


async def test_a_ticket_key_of_a_thief_is_told_to_no_replica(world: World) -> None:
    await change("vault_platformkey", "purpose = 'ticket'", public_key=secrets.token_bytes(32))
    rows = await run(TICKET_KEYS_SQL)
    with pytest.raises(SealBroken):
        [PlatformKey.sealed_row(row) for row in rows]
