"""Rules of money with a number or a state: each just below its bound, at it, and above."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from billing import cards, refunds, selectors
from billing.auto_top_ups import charge_if_low, due_organizations
from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.budgets.runs.records import parse_terms
from billing.disputes.evidence import TEXTS, EvidenceFile, submit_evidence
from billing.errors import (
    BudgetTreeRefusal,
    CardInUse,
    EvidenceRefused,
    InvalidTopUpAmount,
    RefundsFrozen,
    TooManyAttempts,
)
from billing.models import AutoTopUp, BudgetNode, GatewayProcess, Hold, SavedCard, StripeEvent, TopUp, TopUpRefund
from billing.services import release_hold_sync
from billing.splits import Part, SplitPart, split_parameters
from billing.top_ups import refresh_top_up
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import Organization
from tests.billing.budgets.test_tree import api_key, team
from tests.billing.payments import CENT, disputed, paid, refund
from tests.billing.support import hold_request, make_organization, place, settle
from tests.billing.test_cards import rule
from tests.billing.top_ups import begin, post
from tests.database import as_superuser

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


def cards_in(
    organization: Organization, count: int, *, removed_at: datetime | None = None, created_at: datetime | None = None
) -> list[SavedCard]:
    made = SavedCard.objects.bulk_create(
        SavedCard(
            organization=organization,
            payment_method_id=f"pm_{uuid.uuid4().hex}",
            brand="visa",
            last4="4242",
            exp_month=1,
            exp_year=2040,
            removed_at=removed_at,
        )
        for _ in range(count)
    )
    if created_at is not None:
        SavedCard.objects.filter(pk__in=[card.pk for card in made]).update(created_at=created_at)
    return made


@contextmanager
def without_rules() -> Iterator[None]:
    """Write rows as nothing in the product could, with the triggers off."""
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        cursor.execute("SET LOCAL session_replication_role = origin")


def open_page(organization: Organization) -> None:
    cards.open_card_page(key=uuid.uuid4(), organization=organization, success_url="http://b", cancel_url="http://c")


# -- cards and top-ups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("saved", "more"), [(4, True), (5, False)])
def test_an_organization_has_five_cards_and_those_of_others_and_removed_ones_do_not_count(
    double: StripeDouble, organization: Organization, saved: int, more: bool
) -> None:
    cards_in(organization, saved)
    cards_in(organization, 3, removed_at=timezone.now())
    cards_in(make_organization(), 5)
    if more:
        open_page(organization)
    else:
        with pytest.raises(CardInUse, match="up to 5 cards"):
            open_page(organization)
        assert not double.state.of_kind("checkout.session")


@pytest.mark.parametrize(("saved", "age", "more"), [(9, 0, True), (10, 0, False), (10, 29, False), (10, 30, True)])
def test_ten_cards_are_saved_within_thirty_days_and_removed_ones_count(
    double: StripeDouble, organization: Organization, saved: int, age: int, more: bool
) -> None:
    at = timezone.now() - timedelta(days=age)
    cards_in(organization, saved, removed_at=timezone.now(), created_at=at)
    cards_in(make_organization(), 10)
    if more:
        open_page(organization)
    else:
        with pytest.raises(TooManyAttempts, match="10 cards"):
            open_page(organization)
        assert not double.state.of_kind("checkout.session")


@pytest.mark.parametrize(
    ("has_paid", "unpaid", "hours", "more"),
    [
        (False, 9, 0, True),
        (False, 10, 0, False),
        (False, 10, 23.9, False),
        (False, 10, 24.1, True),
        (True, 49, 0, True),
        (True, 50, 0, False),
    ],
)
def test_ten_payments_a_day_are_begun_and_not_paid_and_fifty_by_who_has_paid_before(
    double: StripeDouble, organization: Organization, has_paid: bool, unpaid: int, hours: float, more: bool
) -> None:
    if has_paid:
        for _ in range(2):
            paid(double, organization)  # paid ones do not count
    for one, count in ((organization, unpaid), (make_organization(), 50)):
        TopUp.objects.bulk_create(TopUp(organization=one, amount_cents=500) for _ in range(count))
    TopUp.objects.filter(state=TopUp.State.CREATED).update(created_at=timezone.now() - timedelta(hours=hours))
    pages = len(double.state.of_kind("checkout.session"))
    if more:
        begin(organization)
    else:
        with pytest.raises(TooManyAttempts):
            begin(organization)
    assert len(double.state.of_kind("checkout.session")) - pages == (1 if more else 0)


@pytest.mark.parametrize(("cents", "good"), [(99, False), (100, True), (1_000_000, True), (1_000_001, False)])
def test_a_top_up_is_of_a_dollar_to_ten_thousand(
    double: StripeDouble, organization: Organization, cents: int, good: bool
) -> None:
    if good:
        assert begin(organization, cents).amount_cents == cents
    else:
        with pytest.raises(InvalidTopUpAmount):
            begin(organization, cents)
        assert not TopUp.objects.exists()


@pytest.mark.parametrize(("age", "state"), [(-SECOND, "created"), (SECOND, "expired")])
def test_a_page_that_was_never_seen_has_closed_after_a_day(
    double: StripeDouble, organization: Organization, age: timedelta, state: str
) -> None:
    lost = TopUp.objects.create(organization=organization, amount_cents=500)
    TopUp.objects.filter(pk=lost.pk).update(created_at=timezone.now() - timedelta(hours=24) - age)
    assert refresh_top_up(top_up_id=lost.pk).state == state


@pytest.mark.parametrize("others", [0, 2_500])
@pytest.mark.parametrize(("limit", "payments"), [(4_999, 1), (5_000, 2), (5_001, 2)])
def test_automatic_top_ups_reach_the_month_s_limit_and_do_not_pass_it_whatever_others_pay(
    double: StripeDouble, organization: Organization, limit: int, payments: int, others: int
) -> None:
    if others:
        other = make_organization()
        rule(double, other, amount_cents=others)
        assert charge_if_low(organization_id=other.pk) is not None
    rule(double, organization, threshold_cents=100_000, amount_cents=2_500, monthly_limit_cents=limit)
    for _ in range(3):
        AutoTopUp.objects.update(next_attempt_at=timezone.now())
        charge_if_low(organization_id=organization.pk)
    assert TopUp.objects.filter(organization=organization, state=TopUp.State.CREDITED).count() == payments


@pytest.mark.parametrize(("credit", "low"), [(499, True), (500, False), (501, False)])
def test_credit_is_low_below_the_threshold_and_not_at_it(
    double: StripeDouble, organization: Organization, credit: int, low: bool
) -> None:
    customer = make_organization(credit * CENT)
    rule(double, customer)
    assert (due_organizations() == [customer.pk]) is low
    assert (charge_if_low(organization_id=customer.pk) is not None) is low


def test_a_refused_card_waits_an_hour_then_two_and_is_not_tried_a_fourth_time(
    double: StripeDouble, organization: Organization
) -> None:
    rule(double, organization, "pm_card_chargeCustomerFail")
    for failure, (hours, state) in enumerate(((1, "on"), (2, "on"), (4, "stopped")), start=1):
        began = timezone.now()
        assert charge_if_low(organization_id=organization.pk) is not None
        wish = AutoTopUp.objects.get()
        assert (wish.failures, wish.state) == (failure, state)
        assert timedelta(0) <= wish.next_attempt_at - began - timedelta(hours=hours) < timedelta(minutes=5)
        AutoTopUp.objects.update(next_attempt_at=began)
    assert charge_if_low(organization_id=organization.pk) is None


# -- refunds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "frozen"), [("on", True), ("waiting", True), ("stopped", False), ("off", False)])
@pytest.mark.parametrize(("cents", "below"), [(1_501, True), (1_500, False)])
def test_credit_does_not_go_back_while_an_automatic_top_up_would_buy_it_again_or_waits_for_the_bank(
    double: StripeDouble, organization: Organization, state: str, frozen: bool, cents: int, below: bool
) -> None:
    top_up = paid(double, organization)
    terms = {"threshold_cents": 1_000, "amount_cents": 2_000, "monthly_limit_cents": 9_000}
    for one, its in ((organization, state), (make_organization(), "on")):
        AutoTopUp.objects.create(organization=one, card=cards_in(one, 1)[0], state=its, **terms)
    if frozen and below:
        with pytest.raises(RefundsFrozen, match="turn them off first"):
            refund(organization, top_up, cents)
        assert selectors.wallet(organization).posted == 2_500 * CENT and not double.state.of_kind("refund")
    else:
        assert refund(organization, top_up, cents).state == "sent"


def test_a_refund_that_failed_and_a_dispute_that_was_won_took_nothing_and_others_payments_are_others(
    double: StripeDouble, organization: Organization
) -> None:
    double.tax_percent = 19
    first, second = paid(double, organization, 1_000), paid(double, organization, 2_000)
    refund(organization, second, 300)
    for charge in double.state.of_kind("charge"):
        charge["disputed"] = charge["payment_intent"] == first.payment_intent_id
    assert refund(organization, first, 400).state == "failed"
    assert refunds.given_back(first) == (0, 0) and refunds.given_back(second) == (300, 57)
    assert (refunds.refundable_cents(first), refunds.refundable_cents(second)) == (1_000, 1_700)
    dispute = disputed(double, first, 595)
    assert refunds.given_back(first) == (500, 95) and dispute.state == "open"


def test_fifty_refunds_go_back_of_one_payment_and_no_more(double: StripeDouble, organization: Organization) -> None:
    top_up = paid(double, organization)
    refund(organization, top_up, 1)
    ended = {"state": "failed", "failed_at": timezone.now(), "failure": "lost_or_stolen_card"}
    with without_rules():
        TopUpRefund.objects.bulk_create(
            TopUpRefund(id=uuid.uuid4(), top_up=top_up, amount_cents=1, ledger_transaction_id=-number, **ended)
            for number in range(1, 49)
        )
    assert top_up.refunds.count() == 49
    assert refund(organization, top_up, 1).state == "sent"
    with pytest.raises(RefundsFrozen, match="50 refunds"):
        refund(organization, top_up, 1)
    assert refund(organization, paid(double, organization), 1).state == "sent"


# -- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["settled", "released"])
def test_a_team_with_predictions_in_flight_stays_until_they_have_ended(ends: str) -> None:
    customer, creator = make_organization(10_000), make_organization()
    busy, idle = team(customer, "busy"), team(customer, "idle")
    key = api_key(customer)
    node = tree.move(tree.key_node(key), parent_id=busy.pk)
    request = place(hold_request(customer, creator, api_key_id=key.pk))
    tree.move(node, parent_id=None)  # what is in flight stays on the path that it was placed on
    with pytest.raises(BudgetTreeRefusal, match="in flight"):
        tree.delete_team(busy)
    assert BudgetNode.objects.get(pk=busy.pk).held_nano_usd == 1_000
    tree.delete_team(idle)
    if ends == "settled":
        settle(request.prediction_id)
    else:
        release_hold_sync(prediction_id=request.prediction_id, reason="test")
    tree.delete_team(busy)
    assert not BudgetNode.objects.filter(kind="team").exists()


@pytest.mark.parametrize("field", ["per_request", "daily", "monthly", "total"])
@pytest.mark.parametrize(("limit", "good"), [(-1, False), (0, True), (10**15, True), (10**15 + 1, False)])
def test_a_limit_is_of_nothing_to_a_million_dollars(field: str, limit: int, good: bool) -> None:
    if good:
        Limits(**{f"{field}_nano_usd": limit})
    else:
        with pytest.raises(InvalidInput) as refusal:
            Limits(**{f"{field}_nano_usd": limit})
        assert refusal.value.field == f"{field}_limit_nano_usd"


def test_a_tree_has_six_levels_down_to_a_key_and_an_end_user_is_a_seventh() -> None:
    organization, below = make_organization(), None
    for level in range(4):
        below = team(organization, f"level {level}", below)
    deepest = team(organization, "level 4", below)
    with pytest.raises(BudgetTreeRefusal):
        team(organization, "level 5", deepest)
    key = tree.key_node(api_key(organization))
    with pytest.raises(BudgetTreeRefusal):
        tree.move(key, parent_id=deepest.pk)
    assert below is not None
    key = tree.move(key, parent_id=below.pk)
    assert len(key.path) == 6 and len(tree.end_user_node(key=key, end_user="ada").path) == 7


@pytest.mark.parametrize(("teams", "more"), [(199, True), (200, False)])
def test_an_organization_has_two_hundred_teams_whatever_others_have(teams: int, more: bool) -> None:
    organization = make_organization()
    for one, count in ((organization, teams), (make_organization(), 200)):
        root = tree.organization_node(one)
        rows = [(uuid.uuid4(), number) for number in range(count)]
        BudgetNode.objects.bulk_create(
            BudgetNode(id=pk, organization=one, parent=root, kind="team", name=str(number), path=[root.pk, pk])
            for pk, number in rows
        )
    if more:
        team(organization, "one more")
    else:
        with pytest.raises(BudgetTreeRefusal, match="200 teams"):
            team(organization, "one more")


@pytest.mark.parametrize(("length", "good"), [(1, True), (100, True), (101, False)])
def test_a_name_of_a_team_has_a_hundred_characters(length: int, good: bool) -> None:
    organization = make_organization()
    if good:
        assert len(team(organization, "x" * length).name) == length
    else:
        with pytest.raises(InvalidInput):
            team(organization, "x" * length)


@pytest.mark.parametrize(("length", "good"), [(0, False), (1, True), (64, True), (65, False)])
def test_a_name_of_an_end_user_has_sixty_four_characters(length: int, good: bool) -> None:
    key = tree.key_node(api_key(make_organization()))
    if good:
        assert tree.end_user_node(key=key, end_user="x" * length).end_user == "x" * length
    else:
        with pytest.raises(InvalidInput):
            tree.end_user_node(key=key, end_user="x" * length)


@pytest.mark.parametrize(
    ("field", "least", "most", "default"),
    [
        ("max_cost_nano_usd", 1, 10**15, None),
        ("max_calls", 1, 100_000, 10_000),
        ("deadline_s", 1, 604_800, 3_600),
    ],
)
def test_the_terms_of_a_run_are_within_their_bounds(field: str, least: int, most: int, default: int | None) -> None:
    def terms(**changes: object) -> Mapping[str, object]:
        found = parse_terms({"max_cost_nano_usd": 5, **changes})
        return {
            "max_cost_nano_usd": found.max_cost_nano_usd,
            "max_calls": found.max_calls,
            "deadline_s": found.seconds,
        }

    for good in (least, most):
        assert terms(**{field: good})[field] == good
    for wrong in (least - 1, most + 1, True, 1.5, "5"):
        with pytest.raises(InvalidInput) as refusal:
            terms(**{field: wrong})
        assert refusal.value.field == field
    if default is None:
        with pytest.raises(InvalidInput):
            terms(**{field: None})
    else:
        assert terms()[field] == terms(**{field: None})[field] == default


@pytest.mark.parametrize(("length", "good"), [(0, True), (100, True), (101, False)])
def test_a_name_of_a_run_has_a_hundred_characters(length: int, good: bool) -> None:
    if good:
        assert parse_terms({"max_cost_nano_usd": 5, "name": "x" * length}).name == "x" * length
    else:
        with pytest.raises(InvalidInput):
            parse_terms({"max_cost_nano_usd": 5, "name": "x" * length})


# -- holds, splits, evidence, events --------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "swept"), [(29, False), (31, True)])
@pytest.mark.parametrize("has_beaten", [True, False])
def test_holds_of_a_gateway_that_was_silent_for_half_a_minute_are_swept_and_those_of_others_are_not(
    seconds: int, swept: bool, has_beaten: bool
) -> None:
    customer, creator = make_organization(10_000), make_organization()
    silent, lively = uuid.uuid4(), uuid.uuid4()
    found = [place(hold_request(customer, creator, gateway_id=one)).prediction_id for one in (silent, lively)]
    then = timezone.now() - timedelta(seconds=seconds)
    with without_rules():
        Hold.objects.filter(pk=found[0]).update(created_at=then)
        GatewayProcess.objects.create(pk=lively, last_seen_at=timezone.now())
        if has_beaten:
            GatewayProcess.objects.create(pk=silent, last_seen_at=then)
    assert [one.hold.pk for one in selectors.holds_to_sweep(limit=9)] == (found[:1] if swept else [])


@pytest.mark.parametrize(("seconds", "overdue"), [(29, False), (31, True)])
def test_a_replica_has_half_a_minute_for_its_receipt_after_the_verdict(seconds: int, overdue: bool) -> None:
    request = place(hold_request(make_organization(10_000), make_organization()))
    with without_rules():
        Hold.objects.filter(pk=request.prediction_id).update(
            delivered_tokens=3, verdict_at=timezone.now() - timedelta(seconds=seconds)
        )
    (found,) = selectors.holds_to_sweep(limit=9)
    assert found.overdue is overdue


@pytest.mark.parametrize(("payees", "good"), [(15, True), (16, False)])
def test_a_split_has_sixteen_parts(payees: int, good: bool) -> None:
    parts = tuple(Part(uuid.uuid4(), 500, SplitPart.Reason.CREATOR) for _ in range(payees))
    whole = (*parts, Part(None, 10_000 - 500 * payees, SplitPart.Reason.PLATFORM))
    if good:
        assert len(split_parameters(whole)[0]) == 16
    else:
        with pytest.raises(ValueError, match="at most 16"):
            split_parameters(whole)


@pytest.mark.parametrize(
    ("lengths", "size", "good"),
    [
        ([20_000], 0, True),
        ([20_001], 0, False),
        ([20_000] * 7 + [10_000], 0, True),
        ([20_000] * 7 + [10_001], 0, False),
        ([], 4_500_000, True),
        ([], 4_500_001, False),
    ],
)
def test_evidence_is_as_long_as_banks_read(
    double: StripeDouble, organization: Organization, lengths: list[int], size: int, good: bool
) -> None:
    dispute = disputed(double, paid(double, organization))
    texts = {name: "x" * length for name, length in zip(TEXTS, lengths, strict=False)}
    files = {"receipt": EvidenceFile(b"%PDF-".ljust(size, b"x"))} if size else {}
    assert len(texts) == len(lengths)
    if good:
        assert submit_evidence(dispute_id=dispute.pk, texts=texts, files=files).evidence_sent_at is not None
    else:
        with pytest.raises(EvidenceRefused):
            submit_evidence(dispute_id=dispute.pk, texts=texts, files=files)
        assert not double.state.of_kind("file")


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 400)])
def test_an_event_has_a_quarter_of_a_mebibyte(
    double: StripeDouble, organization: Organization, more: int, status: int
) -> None:
    paid(double, organization)
    event = double.due_events()[0]
    plain, _ = double.signed_webhook(event | {"padding": ""})
    event |= {"padding": "x" * (256 * 1024 - len(plain) + more)}
    assert post(double, event).status_code == status
    assert StripeEvent.objects.count() == (1 if status == 200 else 0)
