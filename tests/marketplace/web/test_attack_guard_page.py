"""The guard before a model on its creator's page: begun with rows that are there, shown while it reads, removed."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from django.conf import settings
from redis.asyncio import Redis

from billing.lots import deposit
from billing.models import Account, LedgerTransaction, Lot
from marketplace.catalog.models import Model, Version
from marketplace.evals.models import EvalRun, EvalSet, ModelGuard
from marketplace.evals.runs import QUEUE
from marketplace.guards.counts import ATTACKS, add_counts
from tests.marketplace.catalog.factories import make_model, make_organization, make_version
from tests.marketplace.evals.factories import make_set
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.django_db
PAGE = "/dashboard/models/transactions"
CONTRACT = {
    "instruction_tokens": 40,
    "max_tokens": 1,
    "output_schema": None,
    "messages": "single",
    "system": "refuse",
    "logprobs": "open",
}


@pytest.fixture
def guard(world: World) -> Version:
    """The platform's guard, for sale."""
    version = make_version(make_model(make_organization("intarsia"), slug="guard"))
    version.contract = CONTRACT
    version.save(update_fields=["contract"])
    return version


@pytest.fixture
def stored(world: World) -> EvalSet:
    deposit(
        organization=world.seller,
        amount_nano_usd=10**9,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(uuid.uuid4()),
    )
    return make_set(world.published, rows=200)


def text(world: World) -> str:
    return world.client(world.creator).get(PAGE).content.decode()


def set_guard(world: World, guard: Version, stored: EvalSet) -> None:
    run = EvalRun.objects.create(eval_set=stored, version=world.published, guard=guard, state="done", budget_nano_usd=1)
    ModelGuard.objects.create(model=world.model, guard=guard, run=run, threshold_milli=1500, rows=200, flagged=1)


def test_a_run_is_begun_with_rows_that_are_there_and_shows_its_progress(
    world: World, guard: Version, stored: EvalSet
) -> None:
    assert f"Set {stored.number}, 200 rows" in text(world) and "Put it before" in text(world)
    world.client(world.creator).post(f"{PAGE}/guard/{stored.pk}")
    run = EvalRun.objects.get(guard=guard)
    assert (run.version, run.state) == (world.published, "waiting") and run.budget_nano_usd > 0
    EvalRun.objects.update(calls_done=50)
    page = text(world)
    assert "50 of 200 rows" in page and "<progress" in page and "Put it before" not in page
    assert not ModelGuard.objects.exists() and QUEUE == "runs"


def test_the_guard_is_shown_with_what_it_refused_and_can_be_removed(
    world: World, guard: Version, stored: EvalSet
) -> None:
    set_guard(world, guard, stored)

    async def count() -> None:
        valkey = Redis.from_url(settings.ENV.valkey_url)
        await add_counts(valkey, [("model", world.model.pk)], [ATTACKS] * 3)
        await valkey.aclose()

    asyncio.run(count())
    public = world.client(None).get("/models/ledgerline/transactions").content.decode()
    assert "reads each request first" in public, "callers are told"
    page = text(world)
    assert "intarsia/guard@1" in page and "200 honest rows" in page and "Set anew" in page
    assert world.client(world.creator).get(PAGE).context["attack_guard"]["refused"] == 3
    world.client(world.creator).post(f"{PAGE}/guard/remove")
    assert not ModelGuard.objects.exists() and "intarsia/guard@1" not in text(world)


def test_another_organizations_rows_and_model_stay_untouched(world: World, guard: Version, stored: EvalSet) -> None:
    set_guard(world, guard, stored)
    other = make_set(make_version(make_model(make_organization())), rows=100)
    assert world.client(world.creator).post(f"{PAGE}/guard/{other.pk}").status_code == 404
    assert world.client(world.consumer).post(f"{PAGE}/guard/{stored.pk}").status_code == 404
    assert world.client(world.consumer).post(f"{PAGE}/guard/remove").status_code == 404
    assert ModelGuard.objects.count() == 1 and EvalRun.objects.filter(state="waiting").count() == 0


def test_without_enough_rows_or_without_a_guard_the_page_says_so(world: World, stored: EvalSet) -> None:
    assert "sells no model named" in text(world)
    version = make_version(make_model(make_organization("intarsia"), slug="guard"))
    Version.objects.filter(pk=version.pk).update(contract=CONTRACT)
    EvalSet.objects.update(rows=49)
    assert "at least 50 rows" in text(world)
    assert Model.objects.filter(attack_guard__isnull=False).count() == 0
