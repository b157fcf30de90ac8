"""A double with a clock that tests move, and a creator with a bank account."""

from __future__ import annotations

import pytest

from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.payouts.support import Clock, fund_platform, open_account
from tests.billing.support import make_organization


@pytest.fixture
def clock(double: StripeDouble) -> Clock:
    clock = Clock()
    double._clock = clock
    return clock


@pytest.fixture
def creator(db: None, double: StripeDouble, clock: Clock) -> Organization:
    """A creator who has been through Stripe's pages, on a platform with $1,000 at Stripe."""
    fund_platform(double)
    organization = make_organization()
    open_account(double, organization)
    return organization
