"""A late receipt is of its hold's latency class, and the charge is by the multiplier that the hold keeps."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from billing.models import Hold, Incident, Usage
from marketplace.gateway.tasks import sweep_open_holds
from protocol.latency import LatencyClass
from tests.billing.support import PRICE
from tests.marketplace.gateway.settlement.hostile_receipts import sign
from tests.marketplace.gateway.settlement.sweeping import COST, Consumer, JournalReplica, assert_charged

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("latency_class", "class_bps", "cost"), [("batch", 5_000, 3), ("interactive", 20_000, 9)])
def test_a_receipt_of_the_holds_class_settles_at_the_multiplier_of_the_hold(
    consumer: Consumer, replica: JournalReplica, latency_class: str, class_bps: int, cost: int
) -> None:
    price = dataclasses.replace(PRICE, class_bps=class_bps)  # 4,200 pico-dollars in the standard class
    replica.finish(consumer.dispatched(replica.row, latency_class=latency_class, price=price))
    assert sweep_open_holds()["settled"] == 1
    usage = Usage.objects.get()
    assert (usage.latency_class, usage.class_bps, usage.cost_nano_usd) == (latency_class, class_bps, cost)
    assert_charged(consumer, cost)


@pytest.mark.parametrize("granted", get_args(LatencyClass))
@pytest.mark.parametrize("claimed", [*get_args(LatencyClass), None])
def test_a_receipt_of_another_class_than_the_holds_charges_nothing(
    consumer: Consumer, replica: JournalReplica, granted: str, claimed: str | None
) -> None:
    hold = consumer.dispatched(replica.row, latency_class=granted)
    claims = replica.claims(hold, latency_class=claimed)
    if claimed is None:
        del claims["latency_class"]  # as before version 4 of the protocol: the standard class
    replica.finish(hold, sign(claims, replica.key, str(replica.row.pk)))
    swept = sweep_open_holds()
    if (claimed or "standard") == granted:
        assert swept["settled"] == 1
        assert_charged(consumer, COST)
        return
    assert swept["refused"] == 1 and sum(sweep_open_holds().values()) == 0
    assert Hold.objects.get().state == "released"
    assert Incident.objects.get().detail["rule"] == "latency_class"
    assert_charged(consumer)
