"""A run through the running gateway: one budget pays both sides, and a worker that was killed pays nothing again."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from billing.models import Usage
from marketplace.catalog.models import Version
from marketplace.trials import running, selectors, services
from marketplace.trials.models import Trial
from marketplace.trials.rows import Row
from tests.marketplace.calls.conftest import _own_database_url, api, shared_gateway, world
from tests.marketplace.gateway.conftest import FUNDS, World, money

__all__ = ["_own_database_url", "api", "shared_gateway", "world"]
pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = 10


CONTRACT = {
    "instruction_tokens": 0,
    "max_tokens": 8,  # so that the holds of a window fit into the credit
    "output_schema": None,
    "messages": "chat",
    "system": "append",
    "logprobs": "none",
}


@sync_to_async
def _start(world: World) -> Trial:
    Version.objects.create(
        model=world.model, number=2, state="published", package_digest="ef" * 32, published_at=timezone.now()
    )
    Version.objects.update(contract=CONTRACT)
    return services.start_trial(
        organization=world.consumer,
        first="maker/thing@1",
        second="maker/thing@2",
        rows=[Row(f"row {number}", "The answer is 42.") for number in range(ROWS)],
        budget_nano_usd=4_000_000,
        scoring=Trial.Scoring.JSON,
    )


async def test_both_sides_are_charged_once_though_the_worker_is_killed(
    api: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = await _start(api)
    write, written = running._write, 0

    def dies(*arguments: object) -> None:
        nonlocal written
        written += 1
        if written == 4:
            raise KeyboardInterrupt
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(running, "_write", dies)

    def killed() -> None:
        with pytest.raises(KeyboardInterrupt):
            running.work_on(trial.pk)
        Trial.objects.filter(pk=trial.pk).update(leased_until=timezone.now())

    await asyncio.to_thread(killed)
    await asyncio.to_thread(running.work_on, trial.pk)
    await sync_to_async(trial.refresh_from_db)()
    progress = await sync_to_async(selectors.progress_of)(trial)
    assert (trial.ended_by, progress.rows_done, progress.winner) == ("rows", ROWS, "")
    charges = await sync_to_async(lambda: list(Usage.objects.values_list("model_name", "cost_nano_usd")))()
    assert len(charges) == 2 * ROWS
    assert progress.a_cost_nano_usd == progress.b_cost_nano_usd == progress.cost_nano_usd // 2
    assert (await money(api))["posted"] == FUNDS - progress.cost_nano_usd == FUNDS - sum(cost for _, cost in charges)
