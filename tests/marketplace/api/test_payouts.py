"""Payouts through the API: from the overview to a statement, and refusals that move nothing."""

from __future__ import annotations

import pytest

from billing.models import Account, Payout
from billing.periods import post_entries
from billing.pricing import NANO_PER_CENT
from devstack.stripe_double.core import StripeDouble
from tests.billing.conftest import double
from tests.billing.payouts.conftest import clock
from tests.billing.payouts.support import Clock, fund_platform, move, open_account, run_to_the_end
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_organization

__all__ = ["clock", "double"]  # the fixtures
pytestmark = pytest.mark.django_db


@pytest.fixture
def _webhooks(settings) -> None:
    settings.ROOT_URLCONF = "marketplace.config.urls"


@pytest.mark.usefixtures("_webhooks")
def test_a_payout_from_setup_to_statement(double: StripeDouble, clock: Clock) -> None:
    fund_platform(double)
    acme = make_organization("acme")
    api = Api.of(acme)
    overview = api.get("payouts/overview").json()
    assert (overview["account"], overview["may_start"]) == (None, False)
    assert [freeze["code"] for freeze in overview["freezes"]] == ["no_account"]
    assert api.post("payouts/setup").json()["url"].startswith("http://stripe.invalid/connect/onboarding/")
    assert error_of(api.post("payouts/dashboard"), 409)["code"] == "no_payout_account"
    open_account(double, acme)
    opened = api.post("payouts/dashboard")
    assert opened.status_code == 201 and opened.json()["url"].startswith("http")
    move(acme, Account.Kind.CREATOR_PAYABLE, 4_000 * NANO_PER_CENT)
    changed = api.call("PATCH", "payouts/overview", {"schedule": "weekly", "minimum_cents": 3_000}).json()
    assert (changed["account"]["schedule"], changed["minimum_cents"], changed["may_start"]) == ("weekly", 3_000, True)

    started = api.post("payouts", {"amount_cents": 3_500})
    assert (started.status_code, started.json()["state"]) == (201, "created")
    assert error_of(api.post("payouts", {}), 409)["code"] == "below_minimum"
    run_to_the_end(clock, Payout.objects.get())
    assert error_of(api.get(f"payouts/{started.json()['id']}/statement"), 409)["code"] == "statement_not_ready"
    post_entries()
    statement = api.get(f"payouts/{started.json()['id']}/statement").json()
    assert (
        statement["closing_nano_usd"]
        == 500 * NANO_PER_CENT
        == sum(line["amount_nano_usd"] for line in statement["lines"])
    )
    assert [row["state"] for row in api.get("payouts").json()["results"]] == ["paid"]


@pytest.mark.usefixtures("_webhooks")
def test_another_organizations_payouts_are_not_found(double: StripeDouble, clock: Clock) -> None:
    fund_platform(double)
    acme = make_organization("acme")
    open_account(double, acme)
    move(acme, Account.Kind.CREATOR_PAYABLE, 4_000 * NANO_PER_CENT)
    payout = Api.of(acme).post("payouts", {}).json()
    stranger = Api.of(make_organization("other"))
    assert stranger.get("payouts").json()["results"] == []
    for path in (f"payouts/{payout['id']}", f"payouts/{payout['id']}/statement"):
        error_of(stranger.get(path), 404)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [({}, 409, "payouts_frozen"), ({"amount_cents": 0}, 400, "min_value"), ({"amount_cents": "x"}, 400, "invalid")],
)
def test_a_refusal_moves_nothing(body: dict[str, object], status: int, code: str) -> None:
    acme = make_organization("acme")
    move(acme, Account.Kind.CREATOR_PAYABLE, 4_000 * NANO_PER_CENT)
    assert error_of(Api.of(acme).post("payouts", body), status)["code"] == code
    assert not Payout.objects.exists()
    assert Account.objects.get(organization=acme, kind="creator_payable").posted == 4_000 * NANO_PER_CENT


def test_earnings_name_the_reserve_what_is_payable_and_what_is_owed(double: StripeDouble) -> None:
    acme = make_organization("acme")
    parts = {Account.Kind.CREATOR_RESERVE: 900, Account.Kind.CREATOR_PAYABLE: 40, Account.Kind.RECEIVABLE: -30}
    for kind, nano in parts.items():
        move(acme, kind, nano)
    names = ("reserve_nano_usd", "payable_nano_usd", "owed_nano_usd")
    earnings, overview = (Api.of(acme).get(path).json() for path in ("earnings", "payouts/overview"))
    assert [earnings[name] for name in names] == [overview[name] for name in names] == [900, 40, 30]
