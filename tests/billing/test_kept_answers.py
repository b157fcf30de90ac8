"""A prediction with an idempotency key is charged together with its kept answer, or not at all."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from billing import tasks
from billing.errors import DuplicateRequest, HoldReleased
from billing.models import Hold, KeptAnswer
from billing.pricing import TokenUsage
from billing.selectors import holds_to_sweep, wallet
from billing.services import record_delivery_sync, release_hold_sync
from billing.statements import RECORD_KEPT_DELIVERY, SETTLE_KEPT, kept_parameters
from tests.billing.support import USAGE_COST, charge, hold_request, make_organization, place, settle, settle_kept
from tests.database import as_owner, as_superuser
from tests.marketplace.gateway.settlement.sweeping import ago, rewrite

pytestmark = pytest.mark.django_db
CREDIT = 10_000


def keyed(key: str = "key") -> uuid.UUID:
    """Place a hold with an idempotency key; return its prediction."""
    return place(hold_request(make_organization(CREDIT), make_organization(), idempotency_key=key)).prediction_id


def left_of(prediction_id: uuid.UUID) -> int:
    """Return the credit of the customer."""
    return wallet(Hold.objects.get(pk=prediction_id).account.organization).available


def kept() -> dict[uuid.UUID, bytes]:
    return {row.prediction_id: bytes(row.content) for row in KeptAnswer.objects.all()}


def deliver(prediction_id: uuid.UUID, tokens: int, answer: bytes, attempt: int = 1) -> str:
    with connection.cursor() as cursor:
        cursor.execute(RECORD_KEPT_DELIVERY, (prediction_id, attempt, tokens, answer))
        return str(cursor.fetchone()[0])


def test_a_charge_and_its_answer_are_written_together_and_the_first_answer_stands() -> None:
    prediction = keyed()
    assert settle_kept(prediction, answer=b"first").cost == USAGE_COST
    assert settle_kept(prediction, answer=b"second").already_settled
    assert kept() == {prediction: b"first"} and left_of(prediction) == CREDIT - USAGE_COST
    row = KeptAnswer.objects.get()
    assert timedelta(hours=24) < row.expires_at - row.created_at < timedelta(hours=25)


def test_without_its_answer_a_prediction_with_a_key_is_free() -> None:
    prediction = keyed()
    assert settle(prediction).cost == 0
    assert Hold.objects.get(pk=prediction).state == "released" and left_of(prediction) == CREDIT
    with pytest.raises(HoldReleased):
        settle_kept(prediction)
    assert kept() == {}


def test_a_batch_keeps_the_answers_of_keys_alone_and_charges_all() -> None:
    prediction, buyer = keyed(), make_organization(CREDIT)
    without = place(hold_request(buyer, make_organization())).prediction_id
    nothing = keyed("other")
    charges = [
        charge(without, answer=b"not asked for"),
        charge(nothing, TokenUsage(3, 0, 0), answer=b"nothing was delivered"),
        charge(prediction, answer=b"kept"),
    ]
    with connection.cursor() as cursor:
        cursor.execute(SETTLE_KEPT, kept_parameters(charges))
        outcomes = {row[0]: row[1] for row in cursor.fetchall()}
    assert outcomes == {without: "settled", prediction: "settled", nothing: "released"}
    assert kept() == {prediction: b"kept"} and wallet(buyer).posted == CREDIT - USAGE_COST


def test_what_another_attempt_reports_is_neither_charged_nor_kept() -> None:
    prediction = keyed()
    with connection.cursor() as cursor:
        cursor.execute(SETTLE_KEPT, kept_parameters([charge(prediction, attempt=2, answer=b"of another")]))
        assert cursor.fetchone()[1] == "other_attempt"
    assert deliver(prediction, 5, b"of another", attempt=2) == "other_attempt"
    assert kept() == {} and Hold.objects.get(pk=prediction).state == "open"


def test_a_verdict_keeps_what_was_delivered_so_that_the_sweeper_may_charge_it() -> None:
    prediction = keyed()
    assert deliver(prediction, 50, b"a part") == "recorded"
    assert [(one.hold.pk, one.unkept) for one in holds_to_sweep(limit=10)] == [(prediction, False)]
    assert settle(prediction).cost == USAGE_COST and kept() == {prediction: b"a part"}
    assert deliver(prediction, 50, b"later") == "closed" and kept() == {prediction: b"a part"}


def test_a_verdict_of_nothing_keeps_nothing() -> None:
    prediction = keyed()
    assert deliver(prediction, 0, b"nothing") == "released" and kept() == {}


def test_a_verdict_without_an_answer_is_marked_for_the_sweeper() -> None:
    prediction, buyer = keyed(), make_organization(CREDIT)
    without_key = place(hold_request(buyer, make_organization())).prediction_id
    for one in (prediction, without_key):
        record_delivery_sync(prediction_id=one, attempt=1, tokens=5)
    assert {one.hold.pk: one.unkept for one in holds_to_sweep(limit=10)} == {prediction: True, without_key: False}


def test_the_database_refuses_a_charge_under_a_key_without_an_answer() -> None:
    prediction = keyed()
    by_hand = (
        "UPDATE billing_hold SET state = 'settled', closed_at = now(), cost_nano_usd = 0, allowance_used_nano_usd = 0"
    )
    with (
        pytest.raises(DatabaseError, match="no kept answer"),
        transaction.atomic(),
        as_owner(),
        connection.cursor() as cursor,
    ):
        cursor.execute(by_hand)
    assert Hold.objects.get(pk=prediction).state == "open"


@pytest.mark.parametrize(
    "by_hand",
    [
        "INSERT INTO billing_keptanswer (prediction_id, organization_id, content, expires_at) "
        "VALUES (gen_random_uuid(), gen_random_uuid(), 'x', now())",
        "UPDATE billing_keptanswer SET content = 'x'",
        "UPDATE vault_answerkey SET wrapped_key = 'x'",
        "SELECT billing_keep_answers('{}', '{}')",
    ],
)
def test_the_application_neither_makes_up_nor_changes_a_kept_answer(by_hand: str) -> None:
    with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(by_hand)


def test_a_key_is_bound_for_24_hours_after_its_charge() -> None:
    buyer, creator = make_organization(CREDIT), make_organization()
    first = place(hold_request(buyer, creator, idempotency_key="key")).prediction_id
    settle_kept(first)
    rewrite([first], closed_at=ago(hours=23, minutes=59))
    with pytest.raises(DuplicateRequest) as duplicate:
        place(hold_request(buyer, creator, idempotency_key="key"))
    assert duplicate.value.prediction_id == first and duplicate.value.state == "settled"
    rewrite([first], closed_at=ago(hours=24, minutes=1))
    second = place(hold_request(buyer, creator, idempotency_key="key", request_hash=b"\1" * 32)).prediction_id
    settle_kept(second)
    assert wallet(buyer).available == CREDIT - 2 * USAGE_COST and set(kept()) == {first, second}


def test_a_released_hold_leaves_its_key_free_for_the_same_request() -> None:
    buyer, creator = make_organization(CREDIT), make_organization()
    for _ in range(2):
        released = place(hold_request(buyer, creator, idempotency_key="key")).prediction_id
        release_hold_sync(prediction_id=released, reason="test")
    settle_kept(place(hold_request(buyer, creator, idempotency_key="key")).prediction_id)
    assert wallet(buyer).available == CREDIT - USAGE_COST


def test_expired_answers_are_deleted_a_batch_at_a_time_and_the_charge_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ANSWER_BATCH", 2)
    predictions = [keyed(f"key {number}") for number in range(6)]
    for one in predictions:
        settle_kept(one)
    with as_superuser():
        KeptAnswer.objects.exclude(pk=predictions[0]).update(expires_at=timezone.now() - timedelta(seconds=1))
    monkeypatch.setattr(tasks, "ANSWER_ROUNDS", 2)
    assert tasks.forget_answers() == 4
    assert tasks.forget_answers() == 1 and tasks.forget_answers() == 0
    assert set(kept()) == {predictions[0]}
    assert Hold.objects.filter(state="settled").count() == 6
