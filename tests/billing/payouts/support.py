"""Creators with earnings of any age, an account at the double, and payouts taken through their steps."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from billing.integrity import find_discrepancies
from billing.ledger import Line, get_account, post_transaction
from billing.models import Account, LedgerTransaction, Payout, PayoutAccount
from billing.payouts.accounts import open_onboarding, refresh_account
from billing.payouts.checks import contradictions
from billing.payouts.services import advance_payout
from billing.periods import post_entries
from billing.pricing import NANO_PER_CENT
from devstack.stripe_double import connect
from devstack.stripe_double.connect_money import PAYOUT_SECONDS
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.support import make_organization
from tests.billing.top_ups import begin, pay, work
from tests.database import behind_the_triggers

Kind = Account.Kind
KINDS = (Kind.CREATOR_RESERVE, Kind.CREATOR_PAYABLE, Kind.PAYOUT_IN_TRANSIT, Kind.RECEIVABLE)
REFRESH = "http://shop/refresh"


class Clock:
    """Unix time of the double, which tests move."""

    def __init__(self) -> None:
        self.now = timezone.now().timestamp()

    def __call__(self) -> float:
        return self.now

    def let_banks_work(self) -> None:
        self.now += PAYOUT_SECONDS


def fund_platform(double: StripeDouble, cents: int = 100_000) -> None:
    """Let a customer buy credit, so that the platform has money at Stripe."""
    top_up = begin(make_organization(), cents)
    pay(double, top_up)
    for event in double.due_events():
        double.record_delivery(event["id"], delivered=True)
    from billing.top_ups import refresh_top_up

    refresh_top_up(top_up_id=top_up.pk)
    work()


def earn(organization: Organization, cents: int, *, days_ago: float = 0) -> None:
    """Give the creator earnings in the reserve, booked and numbered so many days ago."""
    move(organization, Kind.CREATOR_RESERVE, cents * NANO_PER_CENT)
    post_entries()
    backdate(timedelta(days=days_ago))


def move(organization: Organization, kind: Account.Kind, nano: int) -> LedgerTransaction:
    """Move money between an account of the creator and the platform's promotions: any reason would do."""
    lines = [
        Line(get_account(kind=kind, organization=organization), nano),
        Line(get_account(kind=Kind.PROMOTION), -nano),
    ]
    return post_transaction(kind=LedgerTransaction.Kind.PROMOTION, reference=str(uuid.uuid4()), lines=lines)


def backdate(by: timedelta) -> None:
    """Move the last numbers of the books into the past."""
    with behind_the_triggers() as cursor:
        cursor.execute(
            "UPDATE billing_instant SET reached_at = now() - %s WHERE sequence = (SELECT max(sequence) "
            "FROM billing_instant)",
            [by],
        )


def open_account(double: StripeDouble, organization: Organization, **onboarding: Any) -> PayoutAccount:
    """Take the creator through the pages of Stripe."""
    open_onboarding(organization=organization, return_url="http://shop/back", refresh_url=REFRESH)
    account = PayoutAccount.objects.get(pk=organization.pk)
    assert account.stripe_account_id is not None
    connect.onboard(double, account.stripe_account_id, **onboarding)
    return refresh_account(organization_id=organization.pk)


def balances(organization: Organization) -> dict[str, int]:
    """Return the creator's balances in cents, those that are not 0."""
    found = Account.objects.filter(organization=organization, kind__in=KINDS).values_list("kind", "posted")
    return {kind: posted // NANO_PER_CENT for kind, posted in found if posted}


def platform_cents(kind: Account.Kind) -> int:
    account = Account.objects.filter(kind=kind, organization=None).first()
    return account.posted // NANO_PER_CENT if account else 0


def run_to_the_end(clock: Clock, payout: Payout) -> Payout:
    """Take every step, with the banks working in between, until nothing changes."""
    for _round in range(3):
        advance_payout(payout_id=payout.pk)
        clock.let_banks_work()
    return advance_payout(payout_id=payout.pk)


def assert_books_agree() -> None:
    assert contradictions() == []
    assert find_discrepancies() == []


@contextmanager
def configured(**values: Any) -> Iterator[None]:
    """Change settings of the environment, such as `payout_reserve_days`."""
    from dataclasses import replace

    from django.test import override_settings

    with override_settings(ENV=replace(settings.ENV, **values)):
        yield
