"""A run from sealed rows to a figure with receipts, and every way in which it ends without one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from billing.models import BudgetNode, Usage
from marketplace.accounts.errors import Conflict
from marketplace.accounts.models import ApiKey
from marketplace.catalog import blobs
from marketplace.catalog.models import Evaluation, Version
from marketplace.evals import measuring
from marketplace.evals.models import EvalCall, EvalRun, EvalSet
from marketplace.evals.runs import claim_run, start_run
from marketplace.evals.sets import start_set
from marketplace.evals.tasks import expire_abandoned_uploads
from marketplace.vault.models import Release, SigningKey
from marketplace.vault.selectors import verify_own_chain
from tests.marketplace.catalog.factories import stored_path
from tests.marketplace.evals.conftest import CANARY, LABEL, rows, work
from tests.marketplace.gateway.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
Begin = Callable[..., Any]


@sync_to_async
def nothing_shown(world: World) -> None:
    """Assert that a failed run left no figure, no open purse and nothing set aside."""
    assert not Evaluation.objects.exists() and not EvalCall.objects.exists()
    assert not ApiKey.objects.filter(organization=world.creator, revoked_at=None).exists()
    assert not BudgetNode.objects.filter(organization=world.creator, kind="key").exists()
    assert world.balance(world.creator, "customer_credit").held == 0


async def test_a_run_gives_a_figure_with_its_receipts(api: World, begin: Begin) -> None:
    run = await work(await begin(rows("dining", "income", "dining")))
    assert (run.state, run.reason) == ("done", "")
    found = await sync_to_async(Evaluation.objects.get)(run_id=run.pk)
    # The scripted replica answers the same without the weights.
    assert (found.rows, found.correct, found.base_correct) == (3, 2, 2)
    assert found.macro_f1_bps == round(10_000 * (2 * 2 / 5 + 0) / 2)
    tickets = api.replica.served
    assert len(tickets) == 6
    bare = [ticket for ticket in tickets if ticket.get("contract") == api.version.package_digest]
    assert len(bare) == 3 and not any("adapter" in ticket for ticket in bare)
    assert {ticket["latency_class"] for ticket in tickets} == {"batch"}
    calls = await sync_to_async(lambda: list(EvalCall.objects.filter(run=run)))()
    usage = await sync_to_async(lambda: {row.prediction_id: row for row in Usage.objects.all()})()
    assert {call.prediction_id for call in calls} == set(usage)
    assert {call.prediction_id for call in calls if call.base} == {
        row.prediction_id for row in usage.values() if str(row.prediction_id) in {ticket["jti"] for ticket in bare}
    }
    for call in calls:
        assert bytes(call.receipt_sha256 or b"") == hashlib.sha256(usage[call.prediction_id].receipt.encode()).digest()
    assert run.spent_nano_usd == sum(row.cost_nano_usd for row in usage.values()) > 0
    assert {row.organization_id for row in usage.values()} == {api.creator.pk}  # the creator pays


async def test_the_key_of_the_rows_leaves_only_after_its_release_is_logged(
    api: World, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: object, **options: object) -> Any:
        release = Release.objects.get(purpose="eval")
        assert (release.run_id, release.replica, release.version_id) == (run.pk, None, api.version.pk)
        assert release.digest == options["expected_digest"] and not connection.in_atomic_block
        return original(*arguments, **options)  # type: ignore[arg-type]

    original = measuring.open_rows
    monkeypatch.setattr(measuring, "open_rows", opened)
    run = await begin(rows("dining"))
    assert (await work(run)).state == "done"
    assert await sync_to_async(verify_own_chain)(organization=api.creator) == 1


async def test_no_row_is_in_the_database_on_the_disk_or_in_a_log(
    api: World, begin: Begin, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    run = await work(await begin(rows("dining", "income")))
    assert run.state == "done"
    assert CANARY not in caplog.text
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path

    @sync_to_async
    def tables_with_it() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
            names = [name for (name,) in cursor.fetchall()]
            found = []
            for name in names:
                cursor.execute(f'SELECT count(*) FROM "{name}" t WHERE t::text ILIKE %s', [f"%{CANARY}%"])
                found += [name] if cursor.fetchone()[0] else []
                cursor.execute(
                    f"SELECT count(*) FROM \"{name}\" t WHERE t::text LIKE '%%' || encode(%s, 'hex') || '%%'",
                    [CANARY.encode()],
                )
                found += [name] if cursor.fetchone()[0] else []
        return found

    assert await tables_with_it() == []


async def test_a_killed_run_goes_on_without_paying_twice(
    api: World, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    run = await begin(rows("dining", "income", "dining"))
    monkeypatch.setattr(measuring, "finish_run", killed)
    with pytest.raises(Killed):
        await work(run)
    assert (await sync_to_async(EvalRun.objects.get)(pk=run.pk)).state == "running"
    assert await sync_to_async(claim_run)(run.pk) is None  # while the claim of the dead worker stands
    monkeypatch.undo()
    monkeypatch.setattr("marketplace.calls.caller.LONGEST_WAIT", 0.2)
    await sync_to_async(EvalRun.objects.update)(claimed_until=timezone.now() - timedelta(seconds=1))
    done = await work(run)
    assert done.state == "done" and len(api.replica.served) == 6
    charged = await sync_to_async(lambda: sum(Usage.objects.values_list("cost_nano_usd", flat=True)))()
    assert done.spent_nano_usd == charged and await sync_to_async(Usage.objects.count)() == 6
    assert await sync_to_async(Evaluation.objects.count)() == 1


async def test_a_run_whose_budget_ends_fails_and_shows_nothing(api: World, begin: Begin) -> None:
    run = await work(await begin(rows(*["dining"] * 30), budget=800_000))
    assert (run.state, run.reason) == ("failed", "the budget of the run is used up")
    assert 0 < run.spent_nano_usd <= 800_000
    await nothing_shown(api)


async def test_a_version_that_is_withdrawn_midway_ends_the_run(api: World, begin: Begin) -> None:
    run = await begin(rows(*["dining"] * 5))
    await sync_to_async(Version.objects.update)(state="retired")
    ended = await work(run)
    assert (ended.state, ended.reason) == ("failed", "the model was withdrawn")
    await nothing_shown(api)


async def test_a_version_that_is_withdrawn_at_the_end_shows_nothing(
    api: World, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = measuring.finish_run

    def late(*arguments: Any, **options: Any) -> None:
        Version.objects.update(state="revoked")
        original(*arguments, **options)

    monkeypatch.setattr(measuring, "finish_run", late)
    run = await work(await begin(rows("dining")))
    assert run.state == "failed" and "withdrawn" in run.reason
    await nothing_shown(api)


@pytest.mark.parametrize(
    ("data", "options", "reason"),
    [
        (rows("dining", "travel"), {}, "row 2: `expected` is outside the values of 'category'"),
        (rows("dining") + b"x" * 70_000 + b"\n", {}, "row 2: must have at most 64 KB"),
        (rows("dining") + b'{"message": "\xff"}\n', {}, "row 2: must be UTF-8"),
        (rows("dining") + rows("dining"), {}, "row 2: repeats the messages of row 1"),
        (rows("dining"), {"announced": 2}, "2 rows were announced, the set has 1"),
    ],
)
async def test_what_the_command_would_refuse_the_worker_refuses_too(
    api: World, begin: Begin, data: bytes, options: dict[str, Any], reason: str
) -> None:
    run = await work(await begin(data, **options))
    assert run.state == "failed" and run.reason.startswith(reason)
    stored = await sync_to_async(EvalSet.objects.get)()
    assert (stored.state, stored.refusal) == ("refused", run.reason)
    assert api.replica.served == [] and run.spent_nano_usd == 0
    await nothing_shown(api)


async def test_a_row_that_the_model_refuses_ends_the_run(
    api: World, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "SERVICE_TIER", "no such tier")
    run = await work(await begin(rows("dining")))
    assert run.state == "failed" and run.reason.startswith("row 1: the model refuses it (")
    await nothing_shown(api)


async def test_a_platform_that_is_away_lets_the_run_wait_and_a_fault_ends_it(
    api: World, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await begin(rows("dining"))
    monkeypatch.setattr("marketplace.calls.caller.CALL_SECONDS", 0.3)
    api.replica.mode = "nonsense"
    waiting = await work(run)
    assert (waiting.state, waiting.claimed_until) == ("running", None)
    api.replica.mode = "normal"
    monkeypatch.setattr(measuring, "is_right", lambda *_: 1 / 0)
    failed = await work(run)
    assert (failed.state, failed.reason) == ("failed", "a fault of the platform")
    await nothing_shown(api)


async def test_only_ready_sets_run_on_verified_versions_and_once_at_a_time(api: World, begin: Begin) -> None:
    run = await begin(rows("dining"))

    @sync_to_async
    def again(**changes: str) -> str:
        version = Version.objects.get(pk=api.version.pk)
        for name, value in changes.items():
            setattr(version, name, value)
        with pytest.raises(Conflict) as refusal:
            start_run(eval_set=EvalSet.objects.get(pk=run.eval_set_id), version=version)
        return str(refusal.value.code)

    assert await again() == "run_open"
    assert await again(state="retired") == "not_verified"
    await sync_to_async(EvalSet.objects.update)(state="refused")
    assert await again() == "set_not_ready"


async def test_a_package_is_where_it_belongs(api: World, begin: Begin) -> None:
    run = await begin(rows("dining"))
    stored = await sync_to_async(EvalSet.objects.get)(pk=run.eval_set_id)
    assert stored_path(str(stored.package_digest)).exists()
    assert not blobs.part_path(stored.pk).exists()


async def test_an_upload_that_nobody_completes_ends_after_a_day_and_counts_against_no_limit(
    api: World, begin: Begin
) -> None:
    @sync_to_async
    def abandon() -> None:
        key = SigningKey.objects.get()
        old, young = (
            start_set(model=api.model, signing_key=key, package_size=100, rows=1, scorer=LABEL) for _ in range(2)
        )
        EvalSet.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(hours=25))
        assert (expire_abandoned_uploads(), expire_abandoned_uploads()) == (1, 0)
        states = [EvalSet.objects.get(pk=one.pk).state for one in (old, young)]
        assert states == ["refused", "uploading"]
        assert EvalSet.objects.filter(state="ready").count() == 1, "a set that is whole stays"

    await begin(rows("dining"))
    await abandon()
