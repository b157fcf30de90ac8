"""Holds that their gateway left open are closed: by the receipt of the replica that had the attempt, or free."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from billing.models import GatewayProcess, Hold, Incident, Usage
from marketplace.gateway import journals, tasks
from marketplace.vault.models import Replica
from protocol.admin import MAX_JOURNAL_KEYS
from tests.billing.support import keep
from tests.database import as_owner
from tests.marketplace.gateway.settlement.hostile_receipts import LIES, sign
from tests.marketplace.gateway.settlement.sweeping import (
    COST,
    Consumer,
    JournalReplica,
    ago,
    assert_charged,
    journal_replica,
    rewrite,
)

pytestmark = pytest.mark.django_db


def sweep(**expected: int) -> None:
    """Sweep once; it did what is expected and nothing else."""
    assert tasks.sweep_open_holds() == {"settled": 0, "released": 0, "refused": 0, "left": 0} | expected


def state_of(hold: Hold) -> str:
    return str(Hold.objects.get(pk=hold.pk).state)


def beat(**age: float) -> uuid.UUID:
    """A gateway process that was last heard of some time ago."""
    with as_owner():
        row = GatewayProcess.objects.create(id=uuid.uuid4(), host="h")
        GatewayProcess.objects.filter(pk=row.pk).update(last_seen_at=ago(**age))
    return row.pk


# -- verdicts and journals ---------------------------------------------------------------------------------------------


def test_a_receipt_in_the_journal_settles_a_delivered_prediction_once(
    consumer: Consumer, replica: JournalReplica
) -> None:
    replica.finish(consumer.dispatched(replica.row))
    sweep(settled=1)
    sweep()
    assert_charged(consumer, COST)


def test_a_delivered_prediction_whose_answer_is_not_kept_for_its_key_is_free(
    consumer: Consumer, replica: JournalReplica
) -> None:
    """Its gateway died before it could keep the answer: a retry would get nothing for the money."""
    hold = consumer.dispatched(replica.row, idempotency_key="key")
    replica.finish(hold)
    sweep(released=1)
    assert replica.asked == [] and Hold.objects.get(pk=hold.pk).close_reason == "its answer is not kept"
    kept = consumer.dispatched(replica.row, idempotency_key="key")
    keep(kept.pk)
    replica.finish(kept)
    sweep(settled=1)
    assert_charged(consumer, COST)


def test_the_charge_is_for_what_was_delivered_even_if_the_receipt_has_more(
    consumer: Consumer, replica: JournalReplica
) -> None:
    replica.finish(consumer.dispatched(replica.row, delivered=1), completion_tokens=900)
    sweep(settled=1)
    assert Usage.objects.get().completion_tokens == 1


def test_a_hold_without_a_verdict_is_free_once_its_gateway_is_silent_though_the_journal_has_a_receipt(
    consumer: Consumer, replica: JournalReplica
) -> None:
    hold = consumer.dispatched(replica.row, delivered=None, gateway_id=beat(seconds=40))
    replica.finish(hold)
    sweep(released=1)
    assert_charged(consumer)
    assert replica.asked == []


def test_a_living_gateway_keeps_its_holds_until_they_expire(consumer: Consumer, replica: JournalReplica) -> None:
    hold = consumer.dispatched(replica.row, delivered=None, gateway_id=beat(seconds=20))
    rewrite([hold.id], created_at=ago(minutes=4))
    replica.finish(hold)
    sweep()
    assert state_of(hold) == "open"
    rewrite([hold.id], expires_at=ago(seconds=1))
    sweep(released=1)
    assert_charged(consumer)


def test_a_gateway_that_never_beat_is_silent_half_a_minute_after_its_hold(
    consumer: Consumer, replica: JournalReplica
) -> None:
    hold = consumer.dispatched(replica.row, delivered=None, gateway_id=uuid.uuid4())
    sweep()
    rewrite([hold.id], created_at=ago(seconds=40))
    sweep(released=1)


def test_times_are_the_databases(consumer: Consumer, replica: JournalReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = consumer.dispatched(replica.row, delivered=None, gateway_id=beat(seconds=1))
    replica.states[str(consumer.dispatched(replica.row).id)] = {"state": "running", "receipt": None}
    tomorrow = timezone.now() + timedelta(days=1)
    monkeypatch.setattr("django.utils.timezone.now", lambda: tomorrow)
    monkeypatch.setattr("time.time", tomorrow.timestamp)
    sweep(left=1)
    monkeypatch.undo()
    assert state_of(hold) == "open"


def test_a_prediction_its_replica_does_not_know_is_free(consumer: Consumer, replica: JournalReplica) -> None:
    consumer.dispatched(replica.row)
    sweep(released=1)
    assert_charged(consumer)


def test_a_running_prediction_is_left_for_half_a_minute_after_the_verdict(
    consumer: Consumer, replica: JournalReplica
) -> None:
    hold = consumer.dispatched(replica.row)
    replica.states[str(hold.id)] = {"state": "running", "receipt": None}
    sweep(left=1)
    rewrite([hold.id], verdict_at=ago(seconds=40))
    sweep(released=1)
    replica.finish(hold)
    sweep()
    assert_charged(consumer)


# -- which replica -----------------------------------------------------------------------------------------------------


def test_only_the_replica_that_had_the_attempt_is_asked(consumer: Consumer, replica: JournalReplica) -> None:
    with journal_replica("greedy") as greedy:
        hold = consumer.dispatched(replica.row)
        greedy.finish(hold)
        replica.finish(hold)
        sweep(settled=1)
        assert greedy.asked == [] and replica.asked == [[str(hold.id)]]


def test_the_newest_boot_answers_for_one_that_died_and_signs_only_what_was_interrupted(
    consumer: Consumer, replica: JournalReplica
) -> None:
    dead = replica.row
    Replica.objects.filter(pk=dead.pk).update(gone_at=timezone.now(), url="http://127.0.0.1:9")
    holds = [consumer.dispatched(dead) for _ in range(2)]
    boot = replica.register(dead.name)
    for hold, reason in zip(holds, ("interrupted", "stop"), strict=True):
        token = sign(replica.claims(hold, finish_reason=reason), replica.key, str(boot.pk))
        replica.states[str(hold.id)] = {"state": "final", "receipt": token}
    sweep(settled=1, refused=1)
    assert [state_of(hold) for hold in holds] == ["settled", "released"]
    assert Incident.objects.get().detail["rule"] == "signer"
    assert_charged(consumer, COST)


def test_another_replica_cannot_bill_a_hold_that_it_was_not_given(consumer: Consumer, replica: JournalReplica) -> None:
    with journal_replica("greedy") as greedy:
        hold = consumer.dispatched(replica.row)
        replica.finish(hold, sign(replica.claims(hold), greedy.key, str(greedy.row.pk)))
        sweep(refused=1)
    assert_charged(consumer)


# -- replicas that do not answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["hang", "drip", "refuse", "nonsense", "short", "vanished"])
def test_a_replica_that_does_not_answer_delays_no_other_and_its_holds_become_free(
    consumer: Consumer, replica: JournalReplica, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "CALL_SECONDS", 60.0)
    with journal_replica("broken") as broken:
        stuck = [consumer.dispatched(broken.row) for _ in range(3)]
        replica.finish(consumer.dispatched(replica.row))
        broken.mode = mode
        if mode == "vanished":
            broken.close()
        closed: list[str] = []
        carry_out = tasks._carry_out

        def carrying(decision: tasks.Decision, signers: Any) -> tasks.Outcome:
            closed.append(decision.action)
            if decision.action == "settle":
                broken.released.set()  # the healthy replica's hold closes while the broken one still hangs
            return carry_out(decision, signers)

        monkeypatch.setattr(tasks, "_carry_out", carrying)
        sweep(settled=1, left=3)
        if mode in ("hang", "drip"):
            assert closed[0] == "settle"
        rewrite([hold.id for hold in stuck], verdict_at=ago(seconds=40))
        broken.mode = "refuse"
        sweep(released=3)
    assert_charged(consumer, COST)


def test_every_call_ends_in_its_time_however_slowly_the_answer_drips(
    consumer: Consumer, replica: JournalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "CALL_SECONDS", 0.5)
    replica.mode = "drip"
    consumer.dispatched(replica.row)
    started = time.monotonic()
    sweep(left=1)
    assert 0.4 < time.monotonic() - started < 30
    assert not replica.released.is_set()


def test_holds_of_a_replica_that_left_for_good_are_free_at_once(consumer: Consumer, replica: JournalReplica) -> None:
    with journal_replica("removed") as removed:
        consumer.dispatched(removed.row)
    Replica.objects.filter(pk=removed.row.pk).update(gone_at=timezone.now())
    replica.finish(consumer.dispatched(replica.row))
    sweep(settled=1, released=1)
    assert_charged(consumer, COST)


# -- isolation ---------------------------------------------------------------------------------------------------------


def test_bad_receipts_never_stop_the_others(consumer: Consumer, replica: JournalReplica) -> None:
    good = [consumer.dispatched(replica.row) for _ in range(4)]
    bad = [consumer.dispatched(replica.row) for _ in LIES]
    for hold, lie in zip(bad, LIES.values(), strict=True):
        replica.finish(hold, lie(replica.claims(hold), replica.key, str(replica.row.pk)))
    for hold in good:
        replica.finish(hold)
    sweep(settled=len(good), refused=len(bad))
    sweep()
    assert_charged(consumer, *[COST] * len(good))
    assert Incident.objects.count() == len(bad)


@pytest.mark.django_db(transaction=True)
def test_trouble_with_one_hold_leaves_it_open_and_closes_the_others(
    consumer: Consumer, replica: JournalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = [consumer.dispatched(replica.row) for _ in range(3)]
    for hold in holds:
        replica.finish(hold)
    settle = tasks.settle_hold_sync

    def failing(*, prediction_id: uuid.UUID, **rest: Any) -> Any:
        if prediction_id == holds[1].id:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
        return settle(prediction_id=prediction_id, **rest)

    monkeypatch.setattr(tasks, "settle_hold_sync", failing)
    sweep(settled=2, left=1)
    assert [state_of(hold) for hold in holds] == ["settled", "open", "settled"]
    monkeypatch.undo()
    sweep(settled=1)
    assert_charged(consumer, COST, COST, COST)


# -- a killed gateway --------------------------------------------------------------------------------------------------


def test_a_thousand_holds_of_a_killed_gateway_close_in_one_round(consumer: Consumer, replica: JournalReplica) -> None:
    gateway = beat(seconds=40)
    with journal_replica("other") as other:
        for one in (replica, other):
            for delivered in (5, None):
                for hold in consumer.many_dispatched(250, one.row, delivered=delivered, gateway_id=gateway):
                    one.finish(hold)
        sweep(settled=500, released=500)
        batches = [len(batch) for batch in replica.asked + other.asked]
    assert sum(batches) == 500 and max(batches) <= MAX_JOURNAL_KEYS
    assert not Hold.objects.filter(state="open").exists()
    assert_charged(consumer, *[COST] * 500)


def test_large_journals_are_asked_in_batches(
    consumer: Consumer, replica: JournalReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MAX_JOURNAL_KEYS", 4)
    for _ in range(9):
        consumer.dispatched(replica.row)
    sweep(released=9)
    assert sorted(len(batch) for batch in replica.asked) == [1, 4, 4]
