"""News about money are stored with the change that they report, and reach the members once the mail server is back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.core.mail.backends.base import BaseEmailBackend
from django.db import transaction
from django.utils import timezone

from billing.notices import tell_members
from marketplace.accounts.models import Membership, Organization, User
from marketplace.alerts.delivery import deliver_due
from marketplace.alerts.kinds import kind_of
from marketplace.alerts.models import Alert, Delivery

pytestmark = pytest.mark.django_db
NEWS: dict[str, Any] = {
    "kind": "wallet.refund_failed",
    "once": "7",
    "subject": "A refund did not arrive",
    "text": "The credit is back.",
    "data": {"amount_cents": 100},
}


class Away(BaseEmailBackend):
    def send_messages(self, email_messages: Any) -> int:
        raise OSError("connection refused")


@pytest.fixture
def organization() -> Organization:
    made = Organization.objects.create(slug="acme", name="https://evil.example")
    for role in Membership.Role.values:
        user = User.objects.create_user(f"{role}@example.com", "a long enough password")
        Membership.objects.create(user=user, organization=made, role=role)
    return made


def test_a_mail_server_that_is_away_loses_nothing(organization: Organization, settings: Any) -> None:
    working, settings.EMAIL_BACKEND = settings.EMAIL_BACKEND, f"{__name__}.Away"
    tell_members(organization, **NEWS)
    deliver_due()
    assert mail.outbox == [] and Delivery.objects.get().attempts == 1
    settings.EMAIL_BACKEND = working
    Delivery.objects.update(next_attempt_at=timezone.now() - timedelta(seconds=1))
    deliver_due()
    (sent,) = mail.outbox
    assert sent.subject == "A refund did not arrive", "no name of an organization is in a subject"
    assert sorted(sent.bcc) == ["admin@example.com", "billing@example.com", "owner@example.com"]


def test_a_notice_is_told_once_and_is_in_the_feed_of_those_who_look_after_money(organization: Organization) -> None:
    for _ in range(2):
        tell_members(organization, **NEWS)
    assert [(one.kind, one.data) for one in Alert.objects.all()] == [("wallet.refund_failed", {"amount_cents": 100})]
    assert kind_of("wallet.refund_failed").scope == "account"


def test_a_change_that_is_undone_tells_nobody(organization: Organization) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tell_members(organization, **NEWS)
        raise ZeroDivisionError
    assert not Alert.objects.exists()
