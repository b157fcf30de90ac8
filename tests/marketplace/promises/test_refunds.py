"""Months of promises: measured from signed receipts, refunded once, out of the share of whoever promised."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import date, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import DatabaseError, connection, transaction

from billing.account_statements import statement_lines
from billing.integrity import find_discrepancies
from billing.models import Account, Correction, LedgerTransaction
from billing.periods import post_entries
from billing.rollups.checks import find_wrong_sums
from billing.rollups.earnings import earnings_total
from billing.rollups.services import roll_up
from billing.services import credit_promotion, refund_prediction_sync
from marketplace.alerts.models import Alert
from marketplace.promises import services
from marketplace.promises.models import Month, PromiseKind, Refund
from marketplace.promises.selectors import refunds_borne, refunds_of
from protocol.receipts import Receipt, sign_receipt
from tests.database import as_owner
from tests.marketplace.promises.conftest import ADAPTER, AFTERWARDS, BASE, COST, MONTH, Market, credit_of


def test_late_answers_are_paid_by_the_platforms_fee_alone(market: Market) -> None:
    market.promise(PromiseKind.TTFT, 2_000)
    buyer = market.buyer()
    late = [market.call(buyer, ttft_ms=9_000).prediction_id for _ in range(4)]
    for _ in range(8):
        market.call(buyer)
    before, credit = market.earned(), credit_of(buyer)
    assert services.keep_promises(now=AFTERWARDS) == 1
    refund = Refund.objects.get()
    assert (refund.calls, refund.missed, refund.refund_bps) == (12, 4, 5_000)  # a third: more than 5 times one of 20
    fee = 12 * COST * 2_000 // 10_000
    assert refund.amount_nano_usd == refund.paid_nano_usd == fee  # half of the spending is more than the whole fee
    assert credit_of(buyer) == credit + fee
    after = market.earned()
    assert after == before | {"platform": before["platform"] - fee}
    corrections = Correction.objects.order_by("created_at")
    assert {row.prediction_id for row in corrections[:4]} == set(late)  # late ones first
    assert {row.bearer for row in corrections} == {"platform"}
    assert corrections[0].reason == f"the promise of time to first token was missed in {MONTH:%Y-%m}"


def test_invalid_answers_are_paid_by_the_creators_share_alone(market: Market) -> None:
    market.promise(PromiseKind.VALID, 9_000)
    buyer = market.buyer()
    for _ in range(10):
        market.call(buyer)
    for _ in range(2):
        market.cut_off(buyer)
    before, credit = market.earned(), credit_of(buyer)
    services.keep_promises(now=AFTERWARDS)
    refund = Refund.objects.get()
    assert (refund.calls, refund.missed, refund.refund_bps, refund.bearer) == (12, 2, 1_000, market.seller)
    assert refund.paid_nano_usd == 10 * COST // 10 == credit_of(buyer) - credit
    assert market.earned() == before | {"seller": before["seller"] - 450}
    assert sum(Account.objects.values_list("posted", flat=True)) == 0


def test_running_twice_or_killed_in_between_pays_once(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    market.promise(PromiseKind.TTFT, 2_000)
    buyer = market.buyer()
    for _ in range(12):
        market.call(buyer, ttft_ms=2_001)
    credit, pay, count = credit_of(buyer), services.refund_share, Counter[str]()

    def dies(**arguments: object) -> int:
        count["calls"] += 1
        if count["calls"] in (3, 7):  # killed before the third settlement, then again
            raise KeyboardInterrupt
        return pay(**arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(services, "refund_share", dies)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            services.keep_promises(now=AFTERWARDS)
        assert Refund.objects.get().paid_at is None
    services.keep_promises(now=AFTERWARDS)
    fee = 12 * COST * 2_000 // 10_000
    assert credit_of(buyer) == credit + fee == credit + Refund.objects.get().paid_nano_usd
    corrections = Correction.objects.count()
    assert services.keep_promises(now=AFTERWARDS) == 0
    assert services.pay_refund(Refund.objects.get()) == fee
    assert (credit_of(buyer), Correction.objects.count()) == (credit + fee, corrections)
    assert Alert.objects.filter(kind="promise.refunded").count() == 1


def test_each_consumer_is_judged_by_its_own_calls(market: Market) -> None:
    market.promise(PromiseKind.TTFT, 2_000)
    slow, fast, few = market.buyer(), market.buyer(), market.buyer()
    for _ in range(10):
        market.call(slow, ttft_ms=5_000)
        market.call(fast)
    market.call(few, ttft_ms=5_000)
    services.keep_promises(now=AFTERWARDS)
    assert list(Refund.objects.values_list("organization", flat=True)) == [slow.pk]
    month = Month.objects.get()
    assert (month.calls, month.missed, month.value) == (21, 11, 5_000)


def test_calls_that_the_promise_is_not_about_do_not_count(market: Market) -> None:
    market.promise(PromiseKind.TTFT, 2_000)
    buyer = market.buyer()
    for _ in range(10):
        market.call(buyer)
    market.call(buyer, ttft_ms=None)
    market.call(buyer, ttft_ms=9_000, prompt_tokens=9_000)  # its time is that of computing the prompt
    next_day = AFTERWARDS - timedelta(days=1)
    market.call(buyer, ttft_ms=9_000, at=next_day)  # of the month after
    forged = market.call(buyer, ttft_ms=9_000)
    other = Ed25519PrivateKey.generate()
    _replace_receipt(market, forged.prediction_id, other)
    services.keep_promises(now=AFTERWARDS)
    assert (Month.objects.get().calls, Refund.objects.count()) == (10, 0)


def test_answers_that_their_caller_cut_say_nothing_of_validity(market: Market) -> None:
    market.promise(PromiseKind.VALID, 9_000)
    buyer = market.buyer()
    for _ in range(10):
        market.call(buyer)
    market.call(buyer, finish_reason="length")  # charged: the caller asked for fewer tokens
    market.cut_off(buyer, reason="the answer was cut off before it was whole")  # a replica was lost
    services.keep_promises(now=AFTERWARDS)
    assert (Month.objects.get().calls, Month.objects.get().missed) == (10, 0)


def test_the_creators_own_calls_count_for_nothing(market: Market) -> None:
    market.promise(PromiseKind.VALID, 9_000)
    credit_promotion(organization=market.seller, amount_nano_usd=10**6, reference="to try its own model")
    for _ in range(10):
        market.cut_off(market.seller)
        market.call(market.seller)
    services.keep_promises(now=AFTERWARDS)
    assert Month.objects.get().calls == 0 and Month.objects.get().value is None


def test_earnings_that_were_paid_out_become_a_debt(market: Market) -> None:
    market.promise(PromiseKind.VALID, 9_000)
    buyer = market.buyer()
    for _ in range(10):
        market.call(buyer)
        market.cut_off(buyer)
    _pay_out(market.seller)
    services.keep_promises(now=AFTERWARDS)
    refund = Refund.objects.get()
    assert refund.refund_bps == 2_500 and refund.paid_nano_usd == 10 * COST // 4
    owed = Account.objects.get(organization=market.seller, kind="receivable")
    assert owed.posted == -refund.paid_nano_usd


def test_what_was_refunded_already_is_no_spending(market: Market) -> None:
    market.promise(PromiseKind.TTFT, 2_000)
    buyer = market.buyer()
    calls = [market.call(buyer, ttft_ms=5_000) for _ in range(10)]
    start = credit_of(buyer)
    for call in calls[:9]:
        refund_prediction_sync(prediction_id=call.prediction_id, reason="not delivered")
    services.keep_promises(now=AFTERWARDS)
    refund = Refund.objects.get()
    assert (refund.spent_nano_usd, refund.paid_nano_usd) == (COST, COST * 2_000 // 10_000)
    assert credit_of(buyer) == start + 9 * COST + refund.paid_nano_usd


def test_both_promises_broken_give_back_at_most_what_was_paid(market: Market) -> None:
    market.promise(PromiseKind.VALID, 9_900)
    market.promise(PromiseKind.TTFT, 2_000)
    buyer = market.buyer()
    for _ in range(10):
        market.call(buyer, ttft_ms=5_000)
        market.cut_off(buyer)
    before, start = market.earned(), credit_of(buyer)
    assert services.keep_promises(now=AFTERWARDS) == 2
    assert credit_of(buyer) - start == sum(Refund.objects.values_list("paid_nano_usd", flat=True))
    assert market.earned() == {"seller": 0, "upstream": before["upstream"], "platform": 0}


def test_the_books_agree_after_refunds(market: Market) -> None:
    market.promise(PromiseKind.VALID, 9_000)
    market.promise(PromiseKind.TTFT, 2_000)
    buyer = market.buyer()
    for _ in range(12):
        market.call(buyer, ttft_ms=3_000)
    for _ in range(5):
        market.cut_off(buyer)
    services.keep_promises(now=AFTERWARDS)
    connection.check_constraints()
    roll_up()
    post_entries()
    assert find_wrong_sums() == []
    assert find_discrepancies() == []
    (refund,) = refunds_borne(market.seller)
    assert earnings_total(market.seller).creator_nano_usd == 12 * COST * 7 // 10 - refund.paid_nano_usd
    today = date.today()
    lines = statement_lines(buyer, "customer_credit", today)
    given_back = [line for line in lines if line.kind == "correction"]
    assert sum(line.amount_nano_usd for line in given_back) == sum(one.paid_nano_usd for one in refunds_of(buyer))
    assert {line.memo for line in given_back} == {
        f"the promise of {what} was missed in {MONTH:%Y-%m}" for what in ("valid answers", "time to first token")
    }


def test_the_database_refuses_a_correction_that_takes_from_others_than_its_bearer(market: Market) -> None:
    buyer = market.buyer()
    call = market.call(buyer)
    original = LedgerTransaction.objects.get(kind="prediction", reference=str(call.prediction_id))
    correction = uuid.uuid4()
    with (
        pytest.raises(DatabaseError, match="than who bears it"),
        transaction.atomic(),
        as_owner(),
        connection.cursor() as cursor,
    ):
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        cursor.execute(
            "INSERT INTO billing_ledgertransaction (kind, reference, corrects_id) VALUES ('correction', %s, %s) "
            "RETURNING id",
            [str(correction), original.pk],
        )
        (ledger,) = cursor.fetchone()
        cursor.execute(
            "INSERT INTO billing_correction (id, prediction_id, amount_nano_usd, reason, transaction_id, bearer) "
            "VALUES (%s, %s, 10, 'x', %s, 'platform')",
            [correction, call.prediction_id, ledger],
        )
        cursor.execute(
            "INSERT INTO billing_entry (transaction_id, account_id, lot_id, amount) "
            "SELECT %s, account_id, lot_id, -amount / abs(amount) * 10 FROM billing_entry e "
            "JOIN billing_account a ON a.id = e.account_id "
            "WHERE transaction_id = %s AND (a.kind = 'customer_credit' OR a.organization_id = %s)",
            [ledger, original.pk, market.seller.pk],
        )
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert not Correction.objects.exists()


def _replace_receipt(market: Market, prediction_id: uuid.UUID, key: Ed25519PrivateKey) -> None:
    """Store a receipt that another key signed in the replica's name: triggers refuse it, so they are off."""
    from billing.models import Usage
    from tests.database import as_superuser

    claims = Receipt(
        jti=str(prediction_id),
        attempt=1,
        replica_id=str(market.booted.replica.pk),
        iat=1,
        adapter=ADAPTER,
        base=BASE,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        finish_reason="stop",
        ttft_ms=9_000,
        duration_ms=9_000,
    )
    token = sign_receipt(claims, key, signer_id=str(market.booted.replica.pk))
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        Usage.objects.filter(prediction_id=prediction_id).update(receipt=token)
        cursor.execute("SET LOCAL session_replication_role = origin")


def _pay_out(seller: object) -> None:
    """Move all of a creator's earnings out of reach, as a payout does."""
    from billing.ledger import Line, get_account, post_transaction
    from marketplace.accounts.models import Organization

    assert isinstance(seller, Organization)
    reserve = Account.objects.get(organization=seller, kind="creator_reserve")
    transit = get_account(kind=Account.Kind.PAYOUT_IN_TRANSIT, organization=seller)
    amount = reserve.posted
    post_transaction(
        kind=LedgerTransaction.Kind.PAYOUT,
        reference=str(uuid.uuid4()),
        lines=[Line(reserve, -amount), Line(transit, amount)],
    )


def test_a_caller_whose_messages_make_answers_too_long_breaks_no_promise(market: Market) -> None:
    market.version.contract |= {"output_schema": {"type": "object", "properties": {"why": {"type": "string"}}}}
    market.version.save(update_fields=["contract"])
    market.promise(PromiseKind.VALID, 9_000)
    buyer = market.buyer()
    for _ in range(12):
        market.cut_off(buyer)
    assert services.keep_promises(now=AFTERWARDS) == 1
    assert not Refund.objects.exists() and Month.objects.get().calls == 0
