"""Licences and gates at the gateway: a call is refused before anything is held, and goes through within two seconds."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from marketplace.access import services
from marketplace.access.models import AccessRequest
from marketplace.accounts.audit import PLATFORM
from marketplace.catalog import services as catalog
from marketplace.catalog.services.listings import ListingText
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money

pytestmark = pytest.mark.asyncio(loop_scope="module")


@sync_to_async
def change(world: World, **text: Any) -> None:
    world.model.refresh_from_db()
    catalog.update_model(model=world.model, text=ListingText(**text))


@sync_to_async
def accept(world: World) -> None:
    digest = world.model.terms_digest
    services.accept_licence(model=world.model, organization=world.consumer, digest=digest, actor=PLATFORM)


@sync_to_async
def ask(world: World) -> AccessRequest:
    return services.ask_for_access(model=world.model, organization=world.consumer, reason="Tests", actor=PLATFORM)


@sync_to_async
def answer(request: AccessRequest, answer: str) -> None:
    services.answer_request(request=request, answer=answer, actor=PLATFORM)


async def call(world: World, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    """Make a call that sees the last change; return status and error."""
    world.let_pass(1)
    async with world.http.post(path, json=world.body()) as found:
        body = await found.json()
        return found.status, body.get("error")


async def test_a_licence_is_accepted_before_the_first_call_and_again_when_it_changes(world: World) -> None:
    await change(world, licence="own", licence_text="Be kind. £", licence_required=True)
    status, error = await call(world)
    assert (status, error["code"], error["param"]) == (403, "licence_not_accepted", "model")
    assert "/models/maker/thing#admission" in error["message"] and "Nothing was charged" in error["message"]
    assert await money(world) == UNTOUCHED | {"holds": []}
    assert (await call(world, "/v1/quote"))[0] == 200, "a price is no call"
    await accept(world)
    assert (await call(world))[0] == 200
    await change(world, licence_text="Be kinder.")
    assert (await call(world))[1]["code"] == "licence_not_accepted"
    await change(world, licence="MIT")
    assert (await call(world))[1]["code"] == "licence_not_accepted"
    await accept(world)
    assert (await call(world))[0] == 200


async def test_a_gated_model_answers_those_whom_its_creator_let_in_until_that_is_taken_back(world: World) -> None:
    await change(world, gated=True)
    assert (await call(world))[1]["code"] == "access_not_granted"
    request = await ask(world)
    assert (await call(world))[1]["code"] == "access_not_granted"
    await answer(request, "grant")
    assert (await call(world))[0] == 200
    await answer(request, "revoke")
    assert (await call(world))[1]["code"] == "access_not_granted"
