"""Paid calls of the platform in an organization's name: one budget, one charge for each name, a clean end."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable

import jwt
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from billing.models import BudgetNode, Usage
from marketplace.accounts.errors import InvalidCredentials
from marketplace.accounts.models import ApiKey
from marketplace.accounts.run_tokens import issue_run_token, verify_run_token
from marketplace.accounts.services import revoke_api_key
from marketplace.calls import (
    Caller,
    CallRefused,
    CallsEnded,
    ChatAnswer,
    ChatCall,
    close_purse,
    open_purse,
    spent_nano_usd,
)
from marketplace.catalog.models import Version
from tests.marketplace.gateway.conftest import FUNDS, World, money

pytestmark = pytest.mark.asyncio(loop_scope="module")

COST = 500 + 6 * 1_000 + 4 * 100 + 5 * 3_000  # nano-dollars of the scripted replica's answer


def calls(world: World, count: int) -> list[ChatCall]:
    return [ChatCall(f"row-{number}", world.body()) for number in range(count)]


@sync_to_async
def purse_of(world: World, budget: int) -> ApiKey:
    return open_purse(organization=world.consumer, name="a run", budget_nano_usd=budget)


async def run(
    purse: ApiKey, some: Iterable[ChatCall], *, concurrency: int = 4, call_seconds: float = 30
) -> tuple[list[ChatAnswer | CallRefused], CallsEnded | None]:
    """Return the outcomes, and how it ended where it ended early."""

    def work() -> tuple[list[ChatAnswer | CallRefused], CallsEnded | None]:
        outcomes = []
        with Caller(purse, concurrency=concurrency, call_seconds=call_seconds) as caller:
            try:
                for outcome in caller.run(some):
                    outcomes.append(outcome)
            except CallsEnded as end:
                return outcomes, end
        return outcomes, None

    return await asyncio.to_thread(work)


async def test_answers_are_paid_by_the_organization_out_of_the_purse(api: World) -> None:
    purse = await purse_of(api, 1_000_000)
    outcomes, end = await run(purse, calls(api, 5))
    assert end is None
    assert all(isinstance(one, ChatAnswer) for one in outcomes)
    assert {one.name for one in outcomes} == {f"row-{number}" for number in range(5)}
    assert {(one.text, one.finish_reason, one.cost_nano_usd) for one in outcomes if isinstance(one, ChatAnswer)} == {
        ("The answer is 42.", "stop", COST)
    }
    assert await sync_to_async(spent_nano_usd)(purse) == 5 * COST
    assert (await money(api))["posted"] == FUNDS - 5 * COST
    charged = await sync_to_async(lambda: set(Usage.objects.values_list("prediction_id", "api_key_id")))()
    assert charged == {(one.prediction_id, purse.pk) for one in outcomes if isinstance(one, ChatAnswer)}


async def test_calls_that_are_made_again_are_not_paid_again(api: World) -> None:
    purse = await purse_of(api, 1_000_000)
    first, _ = await run(purse, calls(api, 3))
    again, end = await run(purse, calls(api, 5))  # a worker that goes on where another one was killed
    assert end is None and set(first) <= set(again)
    assert len(api.replica.served) == 5
    assert await sync_to_async(spent_nano_usd)(purse) == 5 * COST


async def test_a_run_ends_where_its_budget_does(api: World) -> None:
    budget = 1_000_000
    purse = await purse_of(api, budget)
    outcomes, end = await run(purse, calls(api, 60))
    assert end is not None and end.code == "budget"
    spent = await sync_to_async(spent_nano_usd)(purse)
    assert budget // 2 < spent <= budget and spent == sum(one.cost_nano_usd for one in outcomes)  # type: ignore[union-attr]
    assert (await money(api))["held"] == 0


async def test_a_closed_purse_pays_nothing_and_leaves_no_budget(api: World) -> None:
    purse = await purse_of(api, 1_000_000)
    await run(purse, calls(api, 1))
    await sync_to_async(close_purse)(purse)
    await sync_to_async(close_purse)(purse)
    assert await sync_to_async(BudgetNode.objects.filter(api_key=purse).count)() == 0
    api.let_pass(2)
    outcomes, end = await run(purse, calls(api, 3))
    assert (outcomes, end and end.code) == ([], "stopped")
    assert (await money(api))["posted"] == FUNDS - COST


async def test_a_model_that_is_withdrawn_ends_the_run(api: World) -> None:
    purse = await purse_of(api, 1_000_000)
    await sync_to_async(Version.objects.update)(state="retired")
    outcomes, end = await run(purse, calls(api, 3))
    assert (outcomes, end and end.code) == ([], "withdrawn")


async def test_a_busy_platform_is_asked_again_and_a_bad_request_is_not(api: World) -> None:
    purse = await purse_of(api, 1_000_000)
    api.replica.script = ["nonsense", "drop", "normal"]
    bad = ChatCall("bad", api.body(max_tokens=-1))
    outcomes, end = await run(purse, [bad, *calls(api, 1)], concurrency=1)
    assert end is None
    assert isinstance(outcomes[0], CallRefused) and outcomes[0].status == 400
    assert isinstance(outcomes[1], ChatAnswer)
    assert len(api.replica.served) == 3 and await sync_to_async(spent_nano_usd)(purse) == COST


async def test_a_platform_that_stays_away_ends_the_run(api: World, settings: object) -> None:
    purse = await purse_of(api, 1_000_000)
    settings.ENV = dataclasses.replace(settings.ENV, api_url="http://127.0.0.1:9")  # type: ignore[attr-defined]
    outcomes, end = await run(purse, calls(api, 1), call_seconds=0.5)
    assert (outcomes, end and end.code) == ([], "unavailable")


def test_nobody_but_the_platform_makes_tokens_of_a_run() -> None:
    key = ApiKey(prefix="a" * 12)
    assert verify_run_token(issue_run_token(key=key, bare_base=True)).bare_base is True
    assert verify_run_token(issue_run_token(key=key)).bare_base is False
    assert verify_run_token(issue_run_token(key=key, teaches=True)).teaches is True
    claims = {"aud": "run", "key": "a" * 12, "bare": True, "teaches": False, "exp": 2**33}
    secret = settings.SECRET_KEY
    for forged in (
        "ikr_",
        "ikp_" + jwt.encode(claims, secret, algorithm="HS256"),
        "ikr_" + jwt.encode(claims, "another-key-of-thirty-two-characters!!", algorithm="HS256"),
        "ikr_" + jwt.encode(claims | {"aud": "playground"}, secret, algorithm="HS256"),
        "ikr_" + jwt.encode(claims | {"bare": "yes"}, secret, algorithm="HS256"),
        "ikr_" + jwt.encode(claims | {"key": "A"}, secret, algorithm="HS256"),
        "ikr_" + jwt.encode(claims | {"exp": 1}, secret, algorithm="HS256"),
        "ikr_" + jwt.encode(claims, None, algorithm="none"),
    ):
        with pytest.raises(InvalidCredentials):
            verify_run_token(forged)


async def test_a_runs_token_is_good_only_for_a_live_key_that_may_predict(api: World) -> None:
    narrow = await sync_to_async(ApiKey.objects.create)(
        organization=api.consumer, name="n", prefix="b" * 12, digest=b"\0" * 32, scopes=["publish"]
    )
    for key, status in ((ApiKey(prefix="c" * 12), 401), (narrow, 403)):
        headers = {"authorization": f"Bearer {issue_run_token(key=key)}"}
        assert (await api.http.post("/v1/chat/completions", json=api.body(), headers=headers)).status == status
    await sync_to_async(revoke_api_key)(key=api.key)
    headers = {"authorization": f"Bearer {issue_run_token(key=api.key)}"}
    assert (await api.http.post("/v1/chat/completions", json=api.body(), headers=headers)).status == 401
    assert (await money(api))["holds"] == []
