"""Why nothing can be paid out now: a payout that waits says which of these reasons it waits for."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import models

from billing.models import Account, Incident, PayoutAccount
from marketplace.accounts.models import Organization
from marketplace.accounts.suspension import is_suspended


class Code(models.TextChoices):
    """Why a payout waits; `Payout.frozen_by` keeps it. The label is the sentence that the creator reads."""

    NO_ACCOUNT = "no_account", "Set up payouts first: Stripe asks for your details and your bank account."
    ACCOUNT = "account", "Stripe does not pay out to your account until it has what it asks for."
    INCIDENT = "incident", "Our books and Stripe's do not agree, and a person is looking at it; no payout leaves now."
    SUSPENDED = "suspended", "The platform has suspended this organization; nothing is paid out until it is reinstated."
    OWED = "owed", "Earnings that were taken back after they had been paid out are set against new ones first."


@dataclass(frozen=True, slots=True)
class Freeze:
    """One reason."""

    code: Code

    @property
    def sentence(self) -> str:
        return str(self.code.label)


def freezes(organization: Organization) -> list[Freeze]:
    """Return every reason for which nothing can be paid to `organization` now; empty: payouts leave."""
    found = [_account_freeze(organization)]
    if is_suspended(organization.pk):
        found.append(Code.SUSPENDED)
    if Incident.objects.filter(kind__in=Incident.FREEZING, resolved_at=None).exists():
        found.append(Code.INCIDENT)
    if balance(organization, Account.Kind.RECEIVABLE) < 0:
        found.append(Code.OWED)
    return [Freeze(code) for code in found if code is not None]


def balance(organization: Organization, kind: Account.Kind) -> int:
    """Return the balance of one account of `organization`, 0 before it is open."""
    posted = Account.objects.filter(organization=organization, kind=kind).values_list("posted", flat=True).first()
    return posted or 0


def _account_freeze(organization: Organization) -> Code | None:
    account = PayoutAccount.objects.filter(organization=organization).first()
    if account is None or account.state == PayoutAccount.State.STARTED:
        return Code.NO_ACCOUNT
    return None if account.state == PayoutAccount.State.ACTIVE else Code.ACCOUNT
