"""Days of receipts hang in trees that only grow; every charge of a published day is proven, late ones too."""

from __future__ import annotations

from datetime import date, timedelta
from uuid import UUID

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from billing.models import Incident, Usage
from marketplace.accounts.errors import InvalidInput, NotFound
from marketplace.receipts import selectors, services, trees
from marketplace.receipts.errors import ReceiptContradicted
from marketplace.receipts.keys import published_keys
from marketplace.receipts.models import Day, Head, Segment
from protocol.encoding import decode_base64url
from protocol.proofs.charges import DayHead
from protocol.proofs.documents import VerifiedReceipt, read_head, verify_document
from protocol.proofs.merkle import (
    consistency_path,
    inclusion_path,
    leaf_hash,
    proves_consistency,
    range_hash_of,
    root_of,
)
from tests.marketplace.receipts.conftest import Market, at, move
from tests.marketplace.vault.factories import make_replica

DAY = date(2026, 3, 4)


def verified(market: Market, charge: Usage) -> VerifiedReceipt:
    """The charge's receipt, checked as a stranger would: with the published keys alone."""
    document = selectors.receipt_document(market.buyer, charge.prediction_id)
    return verify_document(document, published_keys())


def roots() -> list[DayHead]:
    return [read_head(head.statement, published_keys())[0] for head in Head.objects.order_by("sequence")]


def test_a_charge_is_proven_by_its_signature_at_once_and_by_its_days_tree_later(market: Market) -> None:
    charge = market.charge(at(4))
    assert verified(market, charge).head is None
    assert services.grow(DAY) == 1
    assert verified(market, charge).head is None  # not published yet
    assert services.publish(DAY) is not None
    found = verified(market, charge)
    assert found.head is not None and (found.head.day, found.head.size) == ("2026-03-04", 1)


def test_a_tree_holds_the_charges_of_its_own_day_in_the_order_of_their_time(market: Market) -> None:
    inside = [market.charge(moment) for moment in (at(4, 23, 59, 59), at(4, 0), at(4))]
    for moment in (at(3, 23, 59, 59), at(5, 0)):
        market.charge(moment)
    assert services.grow(DAY) == 3
    assert services.grow(DAY) == 0
    (segment,) = Segment.objects.all()
    assert bytes(segment.ids) == b"".join(inside[place].prediction_id.bytes for place in (1, 2, 0))


def test_a_charge_of_this_moment_waits_until_none_can_come_before_it(market: Market) -> None:
    market.charge()
    assert services.grow(timezone.now().date()) == 0
    assert Day.objects.get().leaves == 0


def _prove_all(market: Market, charges: list[Usage], size: int) -> None:
    for charge in charges:
        found = verified(market, charge)
        assert found.head is not None and found.head.size == size


def test_every_charge_is_proven_and_late_ones_extend_the_tree(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PAGE", 3)
    charges = [market.charge(at(4, minute=number)) for number in range(10)]
    assert services.grow(DAY) == 10
    first = services.publish(DAY)
    _prove_all(market, charges, 10)
    assert services.publish(DAY) is None and services.add_late(DAY) == 0
    late = [market.charge(at(4, minute=number, second=30)) for number in (0, 5, 9)]
    assert services.grow(DAY) == 1  # the one behind all others was not late
    assert services.add_late(DAY) == 2 and services.add_late(DAY) == 0
    second = services.publish(DAY)
    assert first is not None and second is not None and (first.size, second.size) == (10, 13)
    _prove_all(market, [*charges, *late], 13)
    path = [decode_base64url(one) for one in selectors.consistency(DAY, 10, 13)]
    old, new = (decode_base64url(head.root) for head in roots())
    assert proves_consistency(10, old, 13, new, path)


@pytest.mark.django_db
def test_a_tree_of_several_segments_is_the_tree_of_all_its_leaves() -> None:
    leaves = [(UUID(int=number), at(4, second=number % 60), leaf_hash(b"%d" % number)) for number in range(2_500)]
    day = Day.objects.create(day=DAY)
    with transaction.atomic():
        for first, end in ((0, 3), (3, 1_024), (1_024, 1_030), (1_030, 2_500)):
            trees.append(day, leaves[first:end])
    assert day.leaves == 2_500 and Segment.objects.count() == 3
    hashes = [leaf for _, _, leaf in leaves]
    in_memory = range_hash_of(hashes)
    for size in (2, 1_023, 1_024, 1_025, 2_048, 2_500):  # of heads that were published as the tree grew
        stored = trees.range_hash(DAY, size)
        assert stored(0, size) == root_of(hashes[:size])
        assert inclusion_path(size - 1, size, stored) == inclusion_path(size - 1, size, in_memory)
        assert consistency_path(2, size, stored) == consistency_path(2, size, in_memory)
    assert trees.place_of(DAY, UUID(int=2_100), at(4, second=0)) == (2_100, hashes[2_100])
    assert trees.place_of(DAY, UUID(int=2_501), at(4, second=0)) is None


def test_heads_are_numbered_and_each_names_the_one_before(market: Market) -> None:
    for day in (4, 5):
        market.charge(at(day))
        services.grow(date(2026, 3, day))
        services.publish(date(2026, 3, day))
    first, second = roots()
    assert (first.sequence, second.sequence) == (1, 2)
    assert decode_base64url(first.previous) == bytes(32)
    assert decode_base64url(second.previous) == bytes(Head.objects.get(sequence=1).hash)
    assert [head.sequence for head in selectors.heads(after=1)] == [2]
    assert [head.day.day for head in selectors.latest_heads(5)] == [5, 4]


def test_today_and_the_days_before_are_published_by_one_task(market: Market) -> None:
    now = timezone.now()
    yesterday = now - timedelta(days=1)
    charges = [market.charge(yesterday), market.charge(now - timedelta(minutes=1))]
    services.publish_days()
    assert all(verified(market, charge).head is not None for charge in charges)
    count = Head.objects.count()
    assert services.publish_days() == [] and Head.objects.count() == count
    move(market.charge().prediction_id, yesterday - timedelta(seconds=1))
    (late,) = services.publish_days()
    assert late.size >= 2 or late.day < yesterday.date()


def test_no_proof_between_trees_that_were_not_published(market: Market) -> None:
    market.charge(at(4))
    services.grow(DAY)
    services.publish(DAY)
    assert selectors.consistency(DAY, 1, 1) == []
    with pytest.raises(NotFound):
        selectors.consistency(DAY, 1, 2)
    with pytest.raises(InvalidInput):
        selectors.consistency(DAY, 2, 1)
    with pytest.raises(InvalidInput):
        selectors.consistency(DAY, 0, 1)


def test_books_that_contradict_what_was_published_give_no_receipt_but_an_incident(market: Market) -> None:
    charge = market.charge(at(4))
    services.grow(DAY)
    services.publish(DAY)
    market.booted.replica.delete()  # the platform no longer vouches for the key that it published
    with pytest.raises(ReceiptContradicted):
        selectors.receipt_document(market.buyer, charge.prediction_id)
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("receipt_mismatch", str(charge.prediction_id))
    assert make_replica("r2").replica.pk != market.booted.replica.pk


def _refused(change: str) -> None:
    with pytest.raises(DatabaseError), transaction.atomic():
        exec(change, {"Segment": Segment, "Head": Head, "DAY": DAY})


@pytest.mark.parametrize(
    "change",
    [
        "Segment.objects.update(hashes=bytes(32), ids=bytes(16))",
        "Segment.objects.update(ids=bytes(32))",
        "Segment.objects.update(number=7)",
        "Segment.objects.all().delete()",
        "Segment.objects.create(day=DAY, number=1, ids=bytes(16), hashes=bytes(32), root=bytes(32), first_at='2026-03-04T00:00Z', last_at='2026-03-04T00:00Z')",  # noqa: E501
        "Head.objects.update(size=9)",
        "Head.objects.all().delete()",
        "Head.objects.create(sequence=9, day=DAY, size=9, statement='', hash=bytes(32))",
        "Head.objects.create(sequence=2, day=DAY, size=1, statement='', hash=bytes(32))",
    ],
)
def test_the_database_refuses_to_change_what_is_published(market: Market, change: str) -> None:
    market.charge(at(4))
    services.grow(DAY)
    services.publish(DAY)
    before = list(Segment.objects.values()), list(Head.objects.values())
    _refused(change)
    assert (list(Segment.objects.values()), list(Head.objects.values())) == before
