"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import Organization, User
from tests.marketplace.catalog.factories import make_organization


@pytest.fixture
def acme() -> Organization:
    return make_organization("acme")


@pytest.fixture
def owner(acme: Organization) -> User:
    return acme.memberships.get().user
