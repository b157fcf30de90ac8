"""The world that all operations share: organizations, their accounts at Stripe's double, and the model beside them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import TypeVar
from unittest import mock
from uuid import UUID

import stripe
from django.conf import settings
from django.core.management import call_command
from django.utils import timezone
from hypothesis.stateful import RuleBasedStateMachine, initialize

from billing.models import PayoutAccount
from billing.stripe import stripe_gateway
from devstack.stripe_double import connect_money
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.http_client import DoubleHTTPClient
from marketplace.accounts.models import Organization
from tests.billing.machine.model import Model
from tests.billing.payouts.support import Clock, open_account
from tests.billing.support import make_organization
from tests.database import behind_the_triggers

One = TypeVar("One")
BROKEN_BANK = "000111111116"  # Stripe's number of an account that the bank refuses
PLATFORM_CENTS = 10**8  # at Stripe, so that transfers never wait


class World(RuleBasedStateMachine):
    """Two customers, of whom the second sells too; two sellers, of whom the second has a bank that takes nothing."""

    customers: list[Organization]
    payees: list[Organization]
    model: Model
    double: StripeDouble
    clock: Clock

    @initialize()
    def begin(self) -> None:
        """Start with empty books."""
        call_command("flush", verbosity=0, interactive=False, inhibit_post_migrate=True)
        self.model = Model()
        self.clock = Clock()
        self.double = StripeDouble(
            api_key=settings.ENV.stripe_api_key, webhook_secret=settings.ENV.stripe_webhook_secret, clock=self.clock
        )
        self._network = mock.patch.object(stripe, "RequestsClient", lambda **_options: DoubleHTTPClient(self.double))
        self._network.start()
        stripe_gateway.cache_clear()
        with self.double.turn():
            connect_money._book(self.double, "topup", PLATFORM_CENTS, "tu_1")
        self.customers = [make_organization() for _ in range(2)]
        self.payees = [self.customers[1], make_organization(), make_organization()]
        for payee, number in zip(self.payees[1:], ("000123456789", BROKEN_BANK), strict=True):
            open_account(self.double, payee, number=number)
        PayoutAccount.objects.update(minimum_cents=1)
        self.arrange()

    def arrange(self) -> None:
        """Let each module make what it needs; a module that overrides this calls the others."""

    def teardown(self) -> None:
        """Give the network back."""
        if hasattr(self, "_network"):
            self._network.stop()
            stripe_gateway.cache_clear()


def pick(found: Iterable[One], number: int) -> One:
    """Return the member of this number, counted around."""
    members = list(found)
    return members[number % len(members)]


def change(statement: str, *parameters: datetime) -> None:
    """Change rows as only time does, with the triggers off."""
    with behind_the_triggers() as cursor:
        cursor.execute(statement, parameters)


def month_day(months_ago: int) -> date:
    """Return the first day of a month."""
    today = timezone.now().date()
    number = today.year * 12 + today.month - 1 - months_ago
    return date(number // 12, number % 12 + 1, 1)


def month_noon(months_ago: int) -> datetime:
    """Return a moment of a month that is over."""
    day = month_day(months_ago)
    return datetime(day.year, day.month, 3, 12, tzinfo=UTC)


def owner_of(organization: Organization) -> UUID:
    return UUID(str(organization.pk))
