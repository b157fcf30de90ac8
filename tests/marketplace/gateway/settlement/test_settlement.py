"""No receipt that a dishonest replica can make moves money, and each leaves one incident with its evidence."""

from __future__ import annotations

from typing import get_args

import pytest

from billing.models import Hold, Incident
from marketplace.gateway.settlement import grant_of, signers_of
from marketplace.gateway.tasks import sweep_open_holds
from protocol.receipts import ReceiptRejected, Rule, verify_receipt
from tests.marketplace.gateway.settlement.hostile_receipts import LIES, sign
from tests.marketplace.gateway.settlement.sweeping import ADAPTER, BASE, Consumer, JournalReplica, assert_charged

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", LIES)
def test_a_lie_moves_no_money_and_closes_with_one_incident(
    consumer: Consumer, replica: JournalReplica, name: str
) -> None:
    hold = consumer.dispatched(replica.row)
    token = LIES[name](replica.claims(hold), replica.key, str(replica.row.pk))
    replica.finish(hold, token)
    assert sweep_open_holds()["refused"] == 1
    assert sum(sweep_open_holds().values()) == 0
    assert Hold.objects.get().state == "released"
    assert_charged(consumer)
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("receipt_refused", str(hold.id))
    assert incident.detail["rule"] in get_args(Rule)
    assert incident.detail["receipt"] == token[:4096]
    assert incident.detail["grant"] == {
        "prediction_id": str(hold.id),
        "attempt": 1,
        "replica_id": str(replica.row.pk),
        "adapter": ADAPTER,
        "base": BASE,
        "max_prompt_tokens": 1_000,
        "max_tokens": 1_000,
        "latency_class": "standard",
    }


def test_the_lies_break_every_rule(consumer: Consumer, replica: JournalReplica) -> None:
    hold = consumer.dispatched(replica.row)
    broken = set()
    for lie in LIES.values():
        with pytest.raises(ReceiptRejected) as caught:
            verify_receipt(
                lie(replica.claims(hold), replica.key, str(replica.row.pk)),
                grant_of(hold),
                signers_of([replica.row.pk])[replica.row.pk],
            )
        broken.add(caught.value.rule)
    assert broken == set(get_args(Rule))


def test_the_honest_receipt_is_accepted(consumer: Consumer, replica: JournalReplica) -> None:
    hold = consumer.dispatched(replica.row)
    token = sign(replica.claims(hold), replica.key, str(replica.row.pk))
    receipt = verify_receipt(token, grant_of(hold), signers_of([replica.row.pk])[replica.row.pk])
    assert receipt.completion_tokens == 5


def test_a_receipt_with_a_null_character_is_kept_without_it(consumer: Consumer, replica: JournalReplica) -> None:
    hold = consumer.dispatched(replica.row)
    replica.finish(hold, "paid\0in full")
    assert sweep_open_holds()["refused"] == 1
    assert Incident.objects.get().detail["receipt"] == "paidin full"


def test_only_later_boots_of_the_same_name_may_sign_for_a_replica(consumer: Consumer, replica: JournalReplica) -> None:
    first, second, third = replica.row, replica.register("journal"), replica.register("journal")
    stranger = replica.register("another name")
    signers = signers_of([second.pk, stranger.pk])
    assert set(signers[second.pk]) == {second.pk, third.pk} and first.pk not in signers[second.pk]
    assert set(signers[stranger.pk]) == {stranger.pk}
