"""Two replicas of one base line: customers reach the one that the version is cleared for, and never the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.utils import timezone

from billing.models import Hold, Usage
from marketplace.accounts.models import ApiKey, AuditEntry
from marketplace.accounts.run_tokens import issue_run_token
from marketplace.catalog.models import BaseModel, Clearance, Evaluation
from marketplace.catalog.services import BaseFolder, add_checkpoint
from marketplace.evals.clearances import measure_again, set_leave
from marketplace.evals.clearing import NO_REPLICA, NO_ROWS, clear_versions
from marketplace.evals.models import EvalRun
from marketplace.vault.models import Replica
from tests.marketplace.evals.conftest import CONTRACT, rows, upload_set, work
from tests.marketplace.gateway.conftest import FUNDS, World, keep_alive, money
from tests.marketplace.gateway.scripted_replica import ScriptedReplica
from tests.sealed_weights.factories import HF_CONFIG as CONFIG

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALLER = "ef" * 32
CALLS = "/v1/chat/completions"


@pytest_asyncio.fixture(loop_scope="module")
async def smaller(api: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedReplica]:
    """A replica of a second checkpoint, which takes every call that it gets; the reference's refuses none either."""
    monkeypatch.setattr("marketplace.evals.clearing.current_app.send_task", lambda *_, **__: None)
    replica = ScriptedReplica()
    replica.base, replica.texts = SMALLER, ['{"category":"dining"}']
    await replica.start()
    await sync_to_async(_join)(api, replica)
    yield replica
    await replica.stop()


def _join(world: World, replica: ScriptedReplica) -> None:
    reference = world.model.base_model
    BaseModel.objects.filter(pk=reference.pk).update(config=CONFIG)
    add_checkpoint(line=reference.line, name="tiny-int4", folder=BaseFolder(SMALLER, CONFIG, 2048, "INT4"))
    Replica.objects.create(
        id=replica.id,
        name="smaller",
        url=replica.url,
        base_fingerprint=SMALLER,
        hpke_public_key=b"\0" * 32,
        receipt_public_key=replica.public_key,
        session_digest=b"\1" * 32,
    )
    keep_alive()
    world.version.contract = CONTRACT
    world.version.save(update_fields=["contract"])


async def call(world: World, count: int = 1) -> None:
    for number in range(count):
        answer = await world.http.post(CALLS, json=world.body(messages=[{"role": "user", "content": f"{number}"}]))
        assert answer.status == 200, await answer.text()


async def clearance() -> Clearance:
    return await sync_to_async(Clearance.objects.select_related("version__model__organization", "checkpoint").get)()


async def alone(world: World, on: str) -> None:
    """Let no replica but those of this checkpoint live."""
    await sync_to_async(Replica.objects.exclude(base_fingerprint=on).update)(gone_at=timezone.now())
    world.let_pass(1)


async def measured(world: World, folder: Path, labels: list[str]) -> EvalRun:
    """Upload rows, take a turn, and do what the worker does."""
    await sync_to_async(upload_set)(world, rows(*labels), folder)
    assert await sync_to_async(clear_versions)() == 1
    run = await sync_to_async(EvalRun.objects.get)()
    return await work(run)


async def test_a_version_reaches_another_checkpoint_once_its_rows_gave_there_what_they_give_on_the_reference(
    api: World, smaller: ScriptedReplica, tmp_path: Path
) -> None:
    assert await sync_to_async(clear_versions)() == 0
    assert ((await clearance()).state, (await clearance()).reason) == ("waiting", NO_ROWS)
    await call(api, 3)
    assert len(api.replica.served) == 3 and not smaller.served

    run = await measured(api, tmp_path, ["dining"] * 15 + ["income"] * 5)
    assert (run.state, run.reason, run.spent_nano_usd) == ("done", "", 0)
    found = await clearance()
    assert (found.state, found.is_cleared, found.rows) == ("passed", True, 20)
    assert (found.correct, found.reference_correct, found.same_answers) == (15, 15, 20)
    assert len(smaller.served) == 20 and len(api.replica.served) == 23
    assert {ticket["latency_class"] for ticket in smaller.served} == {"batch"}
    assert not any(ticket.get("teaches") for ticket in smaller.served)
    # Nobody paid, nothing is an evaluation of the model's page, and the purse is closed.
    costs = set(
        await sync_to_async(list)(Usage.objects.filter(organization_id=api.creator.pk).values_list("cost_nano_usd"))
    )
    assert costs == {(0,)} and not await sync_to_async(Evaluation.objects.exists)()
    assert not await sync_to_async(ApiKey.objects.filter(organization=api.creator, revoked_at=None).exists)()

    await alone(api, SMALLER)
    await call(api)
    assert len(smaller.served) == 21
    hold = await sync_to_async(Hold.objects.order_by("-created_at").first)()
    assert hold is not None and (hold.base, hold.state) == (SMALLER, "settled")


async def test_a_checkpoint_that_loses_too_much_is_never_called(
    api: World, smaller: ScriptedReplica, tmp_path: Path
) -> None:
    smaller.texts = ['{"category":"income"}']
    assert (await measured(api, tmp_path, ["dining"] * 20)).state == "done"
    found = await clearance()
    assert (found.state, found.is_cleared) == ("failed", False)
    assert (found.correct, found.reference_correct, found.same_answers) == (0, 20, 0)
    asked = len(smaller.served)
    api.let_pass(1)
    await call(api, 3)
    await alone(api, SMALLER)
    before = await money(api)
    answer = await api.http.post(CALLS, json=api.body())
    assert answer.status == 503 and await money(api) == before and before["posted"] < FUNDS
    assert len(smaller.served) == asked

    # With the creator's leave it is, and the audit log says so; once it is refused, it is not again.
    await sync_to_async(set_leave)(clearance=found, leave="given")
    api.let_pass(1)
    await call(api)
    assert len(smaller.served) == asked + 1
    await sync_to_async(set_leave)(clearance=found, leave="refused")
    api.let_pass(1)
    assert (await api.http.post(CALLS, json=api.body())).status == 503
    acts = await sync_to_async(list)(
        AuditEntry.objects.filter(act__startswith="version.").values_list("act", "data").order_by("id")
    )
    assert acts == [(f"version.leave_{word}", {"checkpoint": "tiny-int4"}) for word in ("given", "refused")]


async def test_another_attempt_may_be_on_another_checkpoint_and_its_receipt_names_it(
    api: World, smaller: ScriptedReplica
) -> None:
    await sync_to_async(clear_versions)()
    await sync_to_async(set_leave)(clearance=await clearance(), leave="given")
    api.let_pass(1)
    for busy, free in ((api.replica, smaller), (smaller, api.replica)):
        busy.mode, free.mode = "refuse", "normal"
        await call(api)
        hold = await sync_to_async(Hold.objects.order_by("-created_at").first)()
        assert hold is not None and (hold.base, hold.replica_id, hold.state) == (free.base, free.id, "settled")


async def test_a_replica_that_names_another_checkpoint_in_its_receipt_charges_nothing(
    api: World, smaller: ScriptedReplica
) -> None:
    api.replica.lies = {"base": SMALLER}
    answer = await api.http.post(CALLS, json=api.body())
    assert answer.status == 503
    assert (await sync_to_async(Hold.objects.get)()).state == "released"


async def test_only_the_platforms_token_reaches_a_checkpoint_by_name(api: World, smaller: ScriptedReplica) -> None:
    headers = {"authorization": f"Bearer {issue_run_token(key=api.key, checkpoint=SMALLER)}"}
    assert (await api.http.post(CALLS, json=api.body(), headers=headers)).status == 503  # named, and not cleared
    for more in ({"checkpoint": SMALLER, "measures": True}, {}):
        await api.http.post(CALLS, json=api.body() | more, headers={"x-intarsia-checkpoint": SMALLER})
    assert not smaller.served


@pytest.mark.parametrize("gone", [SMALLER, "ab" * 32])
async def test_without_a_replica_of_each_nothing_is_measured_until_both_are_there(
    api: World, smaller: ScriptedReplica, tmp_path: Path, gone: str
) -> None:
    await sync_to_async(upload_set)(api, rows(*["dining"] * 20), tmp_path)
    replicas = Replica.objects.filter(base_fingerprint=gone)
    await sync_to_async(replicas.update)(gone_at=timezone.now())
    assert await sync_to_async(clear_versions)() == 0
    assert ((await clearance()).state, (await clearance()).reason) == ("waiting", NO_REPLICA)
    await sync_to_async(replicas.update)(gone_at=None)
    assert await sync_to_async(clear_versions)() == 1
    assert await sync_to_async(clear_versions)() == 0  # one run is open


async def test_a_run_without_a_figure_is_tried_three_times_an_hour_apart(
    api: World, smaller: ScriptedReplica, tmp_path: Path, begin: Callable[..., Any]
) -> None:
    await sync_to_async(upload_set)(api, rows(*["dining"] * 20), tmp_path)
    for tries in (1, 2, 3):
        assert await sync_to_async(clear_versions)() == 1
        await sync_to_async(EvalRun.objects.update)(created_at=timezone.now() - timedelta(hours=7))
        run = await sync_to_async(EvalRun.objects.filter(state="waiting").get)()
        assert (await work(run)).state == "failed"
        found = await clearance()
        assert (found.tries, found.state) == (tries, "failed" if tries == 3 else "waiting")
        assert await sync_to_async(clear_versions)() == 0  # not before an hour has passed
        await sync_to_async(Clearance.objects.update)(not_before=timezone.now())
    assert await sync_to_async(clear_versions)() == 0 and not found.is_cleared
    await sync_to_async(measure_again)(clearance=found)
    assert await sync_to_async(clear_versions)() == 1
