"""Two customers and two models: what one of them did is no other's."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from billing.lots import deposit
from billing.models import Account, LedgerTransaction, Lot
from marketplace.accounts.models import ApiKey, Organization
from marketplace.accounts.services import create_api_key
from marketplace.catalog.models import Model, Version
from marketplace.catalog.services import set_price
from marketplace.vault.models import EnrolledReplica
from tests.marketplace.gateway.conftest import FUNDS, World

pytestmark = pytest.mark.asyncio(loop_scope="module")
TERMS = {"input_micro_usd_per_mtok": 1_000_000, "output_micro_usd_per_mtok": 3_000_000}
MONTHLY, ONCE = 300_000, 200_000
FREE = MONTHLY + ONCE


@sync_to_async
def another_model_and_customer(world: World) -> str:
    """Sell a second model of the same creator, and return the key of a second customer with the same funds."""
    other = Model.objects.create(
        organization=world.creator, slug="other", base_model=world.model.base_model, title="Other"
    )
    Version.objects.create(
        model=other, number=1, state="published", package_digest="ef" * 32, published_at=timezone.now()
    )
    for model in (world.model, other):
        set_price(model=model, monthly_free_nano_usd=MONTHLY, intro_free_nano_usd=ONCE, **TERMS)
    rival = Organization.objects.create(slug="rival", name="Rival")
    deposit(
        organization=rival,
        amount_nano_usd=FUNDS,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(uuid.uuid4()),
    )
    return create_api_key(organization=rival, name="t", scopes=["predict"], created_by=None)[1]


async def test_free_amounts_that_were_used_with_another_model_or_by_another_customer_stay_in_a_quote(
    world: World,
) -> None:
    rival = {"authorization": f"Bearer {await another_model_and_customer(world)}"}

    async def free(model: str, headers: Any = None) -> int:
        quote = await (await world.http.post("/v1/quote", json=world.body(model=model), headers=headers)).json()
        return int(quote["free_nano_usd"])

    async def call(model: str, headers: Any = None) -> None:
        answer = await world.http.post("/v1/chat/completions", json=world.body(model=model), headers=headers)
        assert answer.status == 200

    await call("maker/other")
    assert await free("maker/other") < FREE and await free("maker/thing") == FREE
    await call("maker/thing", rival)
    assert await free("maker/thing", rival) < FREE and await free("maker/other", rival) == FREE
    assert await free("maker/thing") == FREE
    left = await free("maker/other")
    await call("maker/thing")
    assert await free("maker/thing") < FREE and await free("maker/other") == left


async def test_a_key_answers_until_the_moment_of_its_revocation_or_its_end_and_others_go_on(world: World) -> None:
    @sync_to_async
    def key_with(field: str, seconds: float) -> str:
        key, text = create_api_key(organization=world.consumer, name=field, scopes=["predict"], created_by=None)
        ApiKey.objects.filter(pk=key.pk).update(**{field: timezone.now() + timedelta(seconds=seconds)})
        return text

    for field, code in (("revoked_at", "revoked_api_key"), ("expires_at", "expired_api_key")):
        for seconds, status in ((600, 200), (-1, 401)):
            headers = {"authorization": f"Bearer {await key_with(field, seconds)}"}
            answer = await world.http.get("/v1/models", headers=headers)
            assert answer.status == status, (field, seconds)
            if status == 401:
                assert (await answer.json())["error"]["code"] == code
    assert (await world.http.get("/v1/models")).status == 200


@pytest.mark.parametrize(("name", "status"), [("another", 200), ("scripted", 503)])
async def test_a_drained_replica_is_sent_no_call_and_its_neighbours_are(world: World, name: str, status: int) -> None:
    @sync_to_async
    def drain() -> None:
        EnrolledReplica.objects.create(
            name=name,
            base_model=world.model.base_model,
            host="127.0.0.1",
            releases_per_hour=1,
            credential_digest=bytes(32),
            credential_expires_at=timezone.now(),
            drained_at=timezone.now(),
        )

    await drain()
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == status and len(world.replica.served) == (1 if status == 200 else 0)
