"""Runs in the books: exactly as many calls as are funded, counted, and in time, however many are asked for at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from billing.budgets import selectors, tree
from billing.budgets.limits import Limits
from billing.budgets.runs import hot, services
from billing.budgets.runs.records import RunState, RunTerms, run_id_of
from billing.errors import BillingError, RunRefused
from billing.hotpath import HoldRequest, place_hold, release_hold, settle_hold
from billing.models import BudgetNode, Run, Usage
from billing.pricing import TokenUsage
from marketplace.accounts.audit import PLATFORM
from marketplace.accounts.models import ApiKey, Organization
from marketplace.accounts.services import create_api_key, rotate_api_key
from tests.billing.support import USAGE_COST, charge, hold_request, hot_connection, hot_pool, make_organization
from tests.database import as_owner
from tests.marketplace.accounts.acts import acts_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("thread_connection_closed")]

AMOUNT = 600  # nano-dollars set aside for each call
EVERYTHING = TokenUsage(prompt_tokens=0, cached_tokens=0, completion_tokens=1_000)  # costs AMOUNT


class World:
    """A consumer with a key, and a creator."""

    def __init__(self) -> None:
        self.consumer, self.creator = make_organization(10**9), make_organization()
        self.key = api_key(self.consumer)

    def call(self, run: RunState | UUID, **changes: Any) -> HoldRequest:
        run_id = run if isinstance(run, UUID) else run.id
        fields = {"api_key_id": self.key.pk, "run_id": run_id, "amount_nano_usd": AMOUNT} | changes
        return hold_request(self.consumer, self.creator, **fields)

    async def open(self, conn: Any, *, cost: int = 10**6, calls: int = 1_000, seconds: int = 600) -> RunState:
        terms = RunTerms(cost, calls, seconds, "nightly", {"job": "7"})
        return await hot.open_run(conn, organization_id=self.consumer.pk, api_key_id=self.key.pk, terms=terms)

    async def state(self, conn: Any, run: RunState) -> RunState:
        found = await hot.find_run(conn, organization_id=self.consumer.pk, api_key_id=self.key.pk, run_id=run.id)
        assert found is not None
        return found


def api_key(organization: Organization) -> ApiKey:
    return create_api_key(organization=organization, name="key", scopes=["predict"], created_by=None)[0]


async def refusal(conn: Any, request: HoldRequest) -> str:
    """The code that refuses a hold."""
    with pytest.raises(BillingError) as refused:
        await place_hold(conn, request)
    return refused.value.code


@pytest.mark.parametrize(("calls", "funded"), [(200, 80), pytest.param(1_000, 400, marks=pytest.mark.deep)])
async def test_of_calls_at_once_exactly_those_are_paid_that_the_run_is_funded_for(calls: int, funded: int) -> None:
    world = await sync_to_async(World)()
    async with hot_pool(8) as pool:
        async with pool.connection() as conn:
            run = await world.open(conn, cost=funded * AMOUNT)

        async def call() -> str:
            async with pool.connection() as conn:
                request = world.call(run)
                try:
                    await place_hold(conn, request)
                except RunRefused as refused:
                    return refused.code
                await settle_hold(conn, charge(request.prediction_id, EVERYTHING))
                return "paid"

        outcomes = Counter(await asyncio.gather(*(call() for _ in range(calls))))
        async with pool.connection() as conn:
            end = await world.state(conn, run)
    assert outcomes == {"paid": funded, "run_budget_exceeded": calls - funded}
    assert (end.calls, end.spent_nano_usd, end.held_nano_usd) == (funded, funded * AMOUNT, 0)
    assert await sync_to_async(Usage.objects.count)() == funded


async def test_calls_are_counted_when_they_are_admitted_and_money_that_was_not_spent_comes_back() -> None:
    world = await sync_to_async(World)()
    async with hot_connection() as conn:
        run = await world.open(conn, cost=AMOUNT, calls=3)
        paid, freed = world.call(run), world.call(run, amount_nano_usd=AMOUNT - USAGE_COST)
        await place_hold(conn, paid)
        assert await refusal(conn, world.call(run)) == "run_budget_exceeded"
        await settle_hold(conn, charge(paid.prediction_id))
        await place_hold(conn, freed)
        assert (await world.state(conn, run)).held_nano_usd == AMOUNT - USAGE_COST
        await release_hold(conn, freed.prediction_id, reason="nothing came")
        await place_hold(conn, world.call(run, amount_nano_usd=0))
        assert await refusal(conn, world.call(run, amount_nano_usd=0)) == "run_calls_exhausted"
        end = await world.state(conn, run)
    assert (end.calls, end.spent_nano_usd, end.held_nano_usd, end.status) == (3, USAGE_COST, 0, "open")


async def test_a_run_takes_calls_of_its_own_line_of_keys_until_its_end() -> None:
    world = await sync_to_async(World)()
    other = await sync_to_async(api_key)(world.consumer)
    rotated, _ = await sync_to_async(rotate_api_key)(key=world.key, created_by=None)
    stranger = await sync_to_async(World)()
    async with hot_connection() as conn:
        run = await world.open(conn)
        await place_hold(conn, world.call(run, api_key_id=rotated.pk))
        assert await refusal(conn, world.call(run, api_key_id=other.pk)) == "run_unknown"
        assert await refusal(conn, world.call(run, api_key_id=None)) == "run_unknown"
        assert await refusal(conn, stranger.call(run)) == "run_unknown"
        assert await refusal(conn, world.call(uuid4())) == "run_unknown"
        mine = {"organization_id": world.consumer.pk, "api_key_id": other.pk, "run_id": run.id}
        assert await hot.find_run(conn, **mine) is await hot.close_run(conn, **mine) is None
        closed = await hot.close_run(conn, **mine | {"api_key_id": world.key.pk})
        assert closed is not None and closed.status == "closed"
        assert await refusal(conn, world.call(run)) == "run_closed"
        late = await world.open(conn)
        await sync_to_async(_expire)(late)
        assert await refusal(conn, world.call(late)) == "run_expired"
        two = await hot.list_runs(conn, organization_id=world.consumer.pk, api_key_id=rotated.pk, after=None, limit=10)
        rest = await hot.list_runs(
            conn, organization_id=world.consumer.pk, api_key_id=rotated.pk, after=late.id, limit=10
        )
    assert [one.id for one in two] == [late.id, run.id] and [one.id for one in rest] == [run.id]
    assert [one.status for one in two] == ["expired", "closed"]


def _expire(run: RunState) -> None:
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("UPDATE billing_run SET deadline = now() - interval '1 second' WHERE node_id = %s", [run.id])


async def test_the_budgets_above_hold_in_a_run_and_count_its_calls_once() -> None:
    world = await sync_to_async(World)()
    node = await sync_to_async(tree.key_node)(world.key)
    await sync_to_async(tree.set_limits)(node, Limits(total_nano_usd=AMOUNT))
    async with hot_connection() as conn:
        run = await world.open(conn)
        request = world.call(run)
        await place_hold(conn, request)
        assert await refusal(conn, world.call(run)) == "budget_exceeded"
        await settle_hold(conn, charge(request.prediction_id))
        again = world.call(run, prediction_id=request.prediction_id)
        with pytest.raises(BillingError):
            await place_hold(conn, again)
        assert (await world.state(conn, run)).calls == 1
    spent = await sync_to_async(lambda: set(BudgetNode.objects.values_list("spent_total_nano_usd", flat=True)))()
    assert spent == {USAGE_COST}
    shown = await sync_to_async(lambda: [line.node.pk for line in selectors.tree_of(world.consumer)])()
    assert shown == [node.pk]


async def test_money_stops_an_answer_in_a_run_that_asks_for_it() -> None:
    world = await sync_to_async(World)()
    async with hot_connection() as conn:
        run = await world.open(conn, cost=600)
        placed = await place_hold(conn, world.call(run, amount_nano_usd=750, on_budget="stop"))
        state = await world.state(conn, run)
    assert placed.max_tokens < 1_000 and 0 < state.held_nano_usd <= 600


def test_the_organization_closes_a_run_and_old_runs_are_forgotten() -> None:
    world = World()
    run_id = uuid4()
    with connection.cursor() as cursor:
        terms = [run_id, world.consumer.pk, world.key.pk, "n", "{}", 5, 5, 60, 1]
        cursor.execute("SELECT billing_open_run(%s, %s, %s, %s, %s, %s, %s, %s, %s)", terms)
        assert cursor.fetchone() == ("opened",)
        cursor.execute("SELECT billing_open_run(%s, %s, %s, %s, %s, %s, %s, %s, %s)", [uuid4(), *terms[1:]])
        assert cursor.fetchone() == ("too_many",)
    run = Run.objects.get()
    closed = [services.close_run(run=run, actor=PLATFORM).closed_at for _ in range(2)]
    assert closed[0] is not None and closed[0] == closed[1]
    assert acts_of(world.consumer, "run") == ["run.closed"]
    assert services.forget_old_runs() == 0
    with as_owner():
        Run.objects.update(deadline=timezone.now() - timezone.timedelta(days=services.KEPT_DAYS + 1))
    assert services.forget_old_runs() == 1 and not BudgetNode.objects.exists()


def test_an_id_is_read_only_as_it_is_written() -> None:
    run_id = uuid4()
    assert run_id_of(f"run_{run_id.hex}") == run_id
    for text in (run_id.hex, str(run_id), f"run_{run_id}", f"run_{run_id.hex.upper()}x", f"run_{'g' * 32}", ""):
        assert run_id_of(text) is None
