"""Replicas that leave: a good-bye retires a name, ten minutes without one lose it, and neither name is asked again."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import Hold, Incident
from marketplace.gateway import journals, tasks
from marketplace.operations.fleet import fleet
from marketplace.vault import absences
from marketplace.vault.models import EnrolledReplica, Replica
from tests.marketplace.gateway.settlement.hostile_receipts import sign
from tests.marketplace.gateway.settlement.sweeping import COST, Consumer, JournalReplica, assert_charged
from tests.marketplace.vault.registrar import Registrar, issue, post

pytestmark = pytest.mark.django_db
TOKEN = "a-session-token-of-this-boot"


def sweep() -> dict[str, int]:
    """What one round closed, without what it did not do."""
    return {outcome: count for outcome, count in tasks.sweep_open_holds().items() if count}


def say_goodbye(client: Client, replica: JournalReplica, *holds: Hold, token: str = TOKEN) -> Any:
    """Say good-bye with a last word about these holds: what the journal has, or that it knows nothing."""
    Replica.objects.filter(pk=replica.row.pk).update(session_digest=hashlib.sha256(TOKEN.encode()).digest())
    words = [
        {"jti": str(hold.id), "attempt": hold.attempt, "receipt": replica.states.get(str(hold.id), {}).get("receipt")}
        for hold in holds
    ]
    return post(client, f"replicas/{replica.row.pk}/goodbye", {"words": words}, token)


def boot(replica: JournalReplica) -> Replica:
    return Replica.objects.get(pk=replica.row.pk)


# -- good-bye ----------------------------------------------------------------------------------------------------------


def test_the_last_words_close_what_waits_and_the_name_is_never_asked_again(
    client: Client, consumer: Consumer, replica: JournalReplica
) -> None:
    known, unknown = consumer.dispatched(replica.row), consumer.dispatched(replica.row)
    replica.finish(known)
    first = say_goodbye(client, replica).json()
    assert not first["retired"] and {one["jti"] for one in first["owed"]} == {str(known.id), str(unknown.id)}
    assert boot(replica).retired_at is None
    assert say_goodbye(client, replica, known, unknown).json() == {"retired": True, "owed": []}
    assert boot(replica).retired_at is not None and boot(replica).gone_at is not None
    assert_charged(consumer, COST)
    late = consumer.dispatched(replica.row)  # of a gateway that had not heard of it
    replica.finish(late)
    assert sweep() == {"released": 1} and replica.asked == []
    assert Hold.objects.get(pk=late.pk).close_reason == "its replica has left for good"


def test_a_name_is_not_retired_while_a_gateway_is_at_a_prediction_of_it(
    client: Client, consumer: Consumer, replica: JournalReplica
) -> None:
    consumer.dispatched(replica.row, delivered=None)
    assert say_goodbye(client, replica).json() == {"retired": False, "owed": []}
    assert boot(replica).gone_at is None


def test_a_last_word_of_an_earlier_boot_counts_and_a_lie_moves_nothing(
    client: Client, consumer: Consumer, replica: JournalReplica
) -> None:
    earlier = replica.row
    holds = [consumer.dispatched(earlier) for _ in range(2)]
    Replica.objects.filter(pk=earlier.pk).update(gone_at=timezone.now())
    replica.row = replica.register(earlier.name)
    for hold, finish in zip(holds, ("interrupted", "stop"), strict=True):
        claims = replica.claims(hold, finish_reason=finish, replica_id=str(earlier.pk))
        token = sign(claims, replica.key, str(replica.row.pk))
        replica.states[str(hold.id)] = {"state": "final", "receipt": token}
    assert say_goodbye(client, replica, *holds).json()["retired"]
    assert Incident.objects.get().detail["rule"] == "signer"
    assert_charged(consumer, COST)


def test_only_a_living_session_says_good_bye_and_only_for_itself(
    client: Client, consumer: Consumer, replica: JournalReplica
) -> None:
    assert say_goodbye(client, replica, token="another").status_code == 401
    other = replica.register("other")
    stranger = post(client, f"replicas/{other.pk}/goodbye", {"words": []}, TOKEN)
    assert stranger.status_code == 401 and not Replica.objects.filter(retired_at__isnull=False).exists()
    malformed = post(client, f"replicas/{replica.row.pk}/goodbye", {"words": [{"jti": "x"}]}, TOKEN)
    assert malformed.status_code == 400
    assert say_goodbye(client, replica).json()["retired"]
    assert say_goodbye(client, replica).status_code == 401, "its session ended with it"


# -- lost names --------------------------------------------------------------------------------------------------------


def go_away(row: Replica, *, minutes: float) -> None:
    """As if the platform had given the boot up so long ago."""
    Replica.objects.filter(pk=row.pk).update(gone_at=timezone.now() - timedelta(minutes=minutes))


def test_a_name_that_is_away_for_ten_minutes_is_lost_and_staff_are_told_once(
    consumer: Consumer, replica: JournalReplica
) -> None:
    go_away(replica.row, minutes=9)
    assert absences.mark_lost_names() == 0
    go_away(replica.row, minutes=11)
    assert [absences.mark_lost_names(), absences.mark_lost_names()] == [1, 0]
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("replica_lost", replica.row.name)
    hold = consumer.dispatched(replica.row)
    replica.finish(hold)
    assert sweep() == {"released": 1} and replica.asked == []
    assert_charged(consumer)


def test_neither_an_older_boot_nor_a_retired_nor_a_revoked_name_is_lost(
    client: Client, consumer: Consumer, replica: JournalReplica
) -> None:
    go_away(replica.row, minutes=60)
    replica.register(replica.row.name)  # it came back as another boot
    retired = replica.register("retired", retired_at=timezone.now())
    go_away(retired, minutes=60)
    issue("revoked")
    EnrolledReplica.objects.update(revoked_at=timezone.now())
    go_away(replica.register("revoked"), minutes=60)
    assert absences.mark_lost_names() == 0 and not Incident.objects.exists()


def test_a_lost_name_that_comes_back_lives_and_cannot_charge_what_was_given_back(
    client: Client, consumer: Consumer, replica: JournalReplica
) -> None:
    registrar = Registrar(client)
    registrar.enrol(issue())
    registrar.register()
    first = Replica.objects.get(name="r1")
    Replica.objects.filter(pk=first.pk).update(
        url=replica.url, receipt_public_key=bytes(replica.row.receipt_public_key)
    )
    hold = consumer.dispatched(first)
    go_away(first, minutes=11)
    absences.mark_lost_names()
    assert [line.state for line in fleet() if line.name == "r1"] == ["lost"]
    assert sweep() == {"released": 1}
    assert registrar.register().status_code == 200
    incident = Incident.objects.get()
    assert incident.resolved_at is not None and "returned_at" in incident.detail
    assert [line.state for line in fleet() if line.name == "r1"] == ["live"]
    replica.states[str(hold.id)] = {"state": "final", "receipt": replica.finish(hold)}
    again = consumer.dispatched(Replica.objects.get(name="r1", gone_at=None))
    Replica.objects.filter(gone_at=None, name="r1").update(url=replica.url)
    assert sweep() == {"released": 1}, "its journal is asked again, about what is open"
    assert replica.asked == [[str(again.id)]]
    assert_charged(consumer)


def test_a_retired_name_shows_as_such(client: Client, consumer: Consumer) -> None:
    registrar = Registrar(client)
    registrar.enrol(issue())
    session = registrar.register().json()
    answer = post(client, f"replicas/{session['replica_id']}/goodbye", {"words": []}, session["session_token"])
    assert answer.json()["retired"]
    assert [line.state for line in fleet()] == ["retired"]


# -- many dead names ---------------------------------------------------------------------------------------------------


@pytest.fixture
def black_holes() -> Iterator[list[str]]:
    """URLs of a hundred machines that take connections and never answer."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(100)]
        yield [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


def test_a_hundred_dead_names_do_not_delay_the_living(
    consumer: Consumer, replica: JournalReplica, black_holes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, url in enumerate(black_holes):
        dead = replica.register(f"dead-{number}")
        Replica.objects.filter(pk=dead.pk).update(url=url)
        consumer.dispatched(dead)
    for hold in consumer.many_dispatched(50, replica.row):
        replica.finish(hold)
    order: list[str] = []
    carry_out = tasks._carry_out

    def carrying(decision: tasks.Decision, signers: Any) -> tasks.Outcome:
        order.append(decision.action)
        return carry_out(decision, signers)

    monkeypatch.setattr(tasks, "_carry_out", carrying)
    # Long enough that a busy machine asks all and hears the living before it gives up the first of the dead.
    monkeypatch.setattr(journals, "CALL_SECONDS", 4.0)
    began = time.monotonic()
    assert sweep() == {"settled": 50, "left": 100}
    seconds = time.monotonic() - began
    assert order[:50] == ["settle"] * 50, "the living were closed before the dead were given up"
    assert len(replica.asked) == 1, "one call asked for all of them"
    assert seconds < 200, "all are asked at once: one by one it would take 400 s"
    # The names become lost, and are then not asked at all.
    Replica.objects.filter(name__startswith="dead").update(gone_at=timezone.now() - timedelta(minutes=11))
    assert absences.mark_lost_names() == 100
    monkeypatch.setattr(tasks, "ask_journals", None)
    assert sweep() == {"released": 100}
    assert_charged(consumer, *[COST] * 50)
