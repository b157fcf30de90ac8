"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import Organization, User
from tests.marketplace.catalog.factories import make_organization


@pytest.fixture(autouse=True)
def _quick_passwords(settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def acme() -> Organization:
    return make_organization("acme")


@pytest.fixture
def owner(acme: Organization) -> User:
    return acme.memberships.get().user
