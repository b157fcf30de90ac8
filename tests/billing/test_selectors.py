"""Reads of money: each organization sees its own, and the groupings add up."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from django.utils import timezone

from billing import selectors
from billing.ledger import get_account
from billing.models import Account
from billing.rollups.earnings import earnings
from billing.rollups.services import roll_up
from billing.rollups.usage import usage_summary
from billing.selectors import usage_with_refunds
from billing.services import credit_promotion, refund_prediction_sync
from marketplace.accounts.models import Organization
from tests.billing.support import USAGE_COST, hold_request, make_organization, place, settle

pytestmark = pytest.mark.django_db

KEY = uuid.UUID(int=9)


def predict(organization: Organization, creator: Organization, model: str, key: uuid.UUID | None = None) -> uuid.UUID:
    model_id = uuid.uuid5(uuid.NAMESPACE_URL, model)
    request = replace(hold_request(organization, creator), model_name=model, model_id=model_id, api_key_id=key)
    place(request)
    settle(request.prediction_id)
    return request.prediction_id


@pytest.fixture
def market() -> dict[str, Organization]:
    """Two buyers and two creators: ann buys acme/a twice (once by key) and zeta/z once, bob buys acme/a once."""
    ann, bob = make_organization(10_000), make_organization(10_000)
    acme, zeta = make_organization(), make_organization()
    predict(ann, acme, "acme/a")
    predict(ann, acme, "acme/a", KEY)
    predict(ann, zeta, "zeta/z")
    predict(bob, acme, "acme/a")
    roll_up()
    return {"ann": ann, "bob": bob, "acme": acme, "zeta": zeta}


def test_a_wallet_shows_posted_held_and_available(market: dict[str, Organization]) -> None:
    place(hold_request(market["ann"], market["acme"]))
    wallet = selectors.wallet(market["ann"])
    assert (wallet.posted, wallet.held) == (10_000 - 3 * USAGE_COST, 1_000)
    assert wallet.available == wallet.posted - 1_000
    assert selectors.wallet(Organization(slug="none", name="none")) == selectors.Wallet(0, 0)


def test_usage_is_seen_by_the_organization_that_paid_and_no_other(market: dict[str, Organization]) -> None:
    rows = selectors.usage_rows(market["ann"])
    assert len(rows) == 3 and {row.organization_id for row in rows} == {market["ann"].pk}
    assert selectors.usage_row(market["ann"], rows[0].prediction_id) == rows[0]
    assert selectors.usage_row(market["bob"], rows[0].prediction_id) is None
    assert selectors.usage_row(market["acme"], rows[0].prediction_id) is None
    assert selectors.usage_rows(market["acme"]) == []
    assert len(selectors.usage_rows(market["ann"], limit=2)) == 2


def test_usage_groups_by_day_model_and_key(market: dict[str, Organization]) -> None:
    (day,) = usage_summary(market["ann"], group_by=["day"])
    assert (day.predictions, day.cost_nano_usd, day.model_name) == (3, 3 * USAGE_COST, None)
    assert day.day == timezone.now().date()
    by_model = usage_summary(market["ann"], group_by=["model"])
    assert [(line.model_name, line.predictions) for line in by_model] == [("acme/a", 2), ("zeta/z", 1)]
    everything = usage_summary(market["ann"])
    assert len(everything) == 3 and sum(line.completion_tokens for line in everything) == 150
    assert {line.api_key_id for line in everything} == {None, KEY}
    with pytest.raises(ValueError, match="colour"):
        usage_summary(market["ann"], group_by=["colour"])


def test_earnings_count_what_a_creator_sold_without_naming_consumers(market: dict[str, Organization]) -> None:
    found = earnings(market["acme"])
    assert (found.total.predictions, found.total.consumers) == (3, 2)
    assert found.total.creator_nano_usd == found.balances.net_nano_usd == 3 * 35
    assert found.total.charged_nano_usd == 3 * USAGE_COST
    assert [(line.model_name, line.predictions) for line in found.by_model] == [("acme/a", 3)]
    assert [line.day for line in found.by_day] == [timezone.now().date()]
    unsold = earnings(market["ann"])
    assert (unsold.balances.net_nano_usd, unsold.total.predictions, unsold.by_day) == (0, 0, ())


def test_the_platforms_summary_adds_up(market: dict[str, Organization]) -> None:
    summary = selectors.platform_summary()
    assert summary == selectors.PlatformSummary(
        charged=4 * USAGE_COST, creator=4 * 35, platform=4 * 9, ledger_sum=0, predictions=4, uncounted=0, open_holds=0
    )


def test_a_refunded_prediction_counts_and_costs_nothing_in_every_sum(market: dict[str, Organization]) -> None:
    prediction_id = predict(market["ann"], market["acme"], "acme/a")
    assert refund_prediction_sync(prediction_id=prediction_id, reason="the answer never went out")
    roll_up()
    rows = usage_with_refunds().filter(organization_id=market["ann"].pk)
    assert sorted(rows.values_list("refunded", "charged_nano_usd")) == [
        *[(False, USAGE_COST)] * 3,
        (True, 0),
    ]
    (day,) = usage_summary(market["ann"], group_by=["day"])
    assert (day.predictions, day.cost_nano_usd) == (4, 3 * USAGE_COST)
    assert sum(line.cost_nano_usd for line in usage_summary(market["ann"])) == 3 * USAGE_COST
    found = earnings(market["acme"])
    assert (found.total.predictions, found.total.creator_nano_usd, found.balances.net_nano_usd) == (4, 3 * 35, 3 * 35)
    assert sum(line.creator_nano_usd for line in found.by_model) == 3 * 35
    summary = selectors.platform_summary()
    assert (summary.charged, summary.creator, summary.platform) == (4 * USAGE_COST, 4 * 35, 4 * 9)


def test_a_statement_lists_own_entries_newest_first(market: dict[str, Organization]) -> None:
    lines = selectors.statement(market["ann"])
    assert [line.transaction_kind for line in lines] == ["prediction"] * 3 + ["promotion"]
    assert sum(line.amount_nano_usd for line in lines) == selectors.wallet(market["ann"]).posted
    assert selectors.statement(market["ann"], limit=1) == lines[:1]


def test_an_account_is_opened_once() -> None:
    organization = make_organization()
    opened = [get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=organization) for _ in range(2)]
    assert opened[0] == opened[1] == Account.objects.get(organization=organization)


def test_a_promotion_is_given_once_for_a_reference_and_never_takes() -> None:
    organization = make_organization()
    for _ in range(2):
        credit_promotion(organization=organization, amount_nano_usd=100, reference="welcome")
    assert selectors.wallet(organization).posted == 100
    for amount in (0, -5):
        with pytest.raises(ValueError):
            credit_promotion(organization=organization, amount_nano_usd=amount, reference="other")
    assert selectors.platform_summary().ledger_sum == 0
