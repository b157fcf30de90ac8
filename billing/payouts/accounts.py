"""A creator's account at Stripe: opening it, following it, and the terms on which it is paid out.

No database transaction is open during a call to Stripe.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from billing.models import PayoutAccount
from billing.models.payouts import MAX_MINIMUM_CENTS
from billing.payouts.errors import InvalidTerms, NoPayoutAccount
from billing.stripe import StripeGateway, stripe_gateway
from billing.stripe.connect import AccountUnknown, ConnectedAccount
from marketplace.accounts import audit
from marketplace.accounts.models import Organization
from protocol.money import CENTS, usd

State = PayoutAccount.State
CHECK_STARTED = timedelta(minutes=1)  # while the creator may be filling in the pages
CHECK_SETTLED = timedelta(days=1)


def least_minimum_cents() -> int:
    """Return the least that a creator may set as a minimum."""
    least: int = settings.ENV.payout_minimum_cents
    return least


def open_onboarding(
    *, organization: Organization, return_url: str, refresh_url: str, gateway: StripeGateway | None = None
) -> str:
    """Return the address of Stripe's page for details and bank account, for one visit within minutes.

    Makes the account at Stripe at the first call. Raises PaymentProviderUnavailable.
    """
    gateway = gateway or stripe_gateway()
    account, _created = PayoutAccount.objects.get_or_create(
        organization=organization, defaults={"minimum_cents": least_minimum_cents()}
    )
    if account.stripe_account_id is None:
        made = gateway.connect.create_account(organization_id=organization.pk, name=organization.name)
        # The first of two at once wins; both made the same account, by its key.
        PayoutAccount.objects.filter(pk=account.pk, stripe_account_id=None).update(stripe_account_id=made)
        account.refresh_from_db()
    PayoutAccount.objects.filter(pk=account.pk).update(next_check_at=Now() + CHECK_STARTED, checks=0)
    return gateway.connect.onboarding_url(_stripe_id(account), return_url=return_url, refresh_url=refresh_url)


def open_dashboard(*, organization: Organization, gateway: StripeGateway | None = None) -> str:
    """Return the address of the creator's own pages at Stripe, for one visit.

    Raises NoPayoutAccount, PaymentProviderUnavailable.
    """
    account = PayoutAccount.objects.filter(organization=organization).exclude(state=State.STARTED).first()
    if account is None or account.state == State.CLOSED:
        raise NoPayoutAccount
    return (gateway or stripe_gateway()).connect.dashboard_url(_stripe_id(account))


def refresh_account(*, organization_id: UUID, gateway: StripeGateway | None = None) -> PayoutAccount:
    """Ask Stripe how the account is now, and keep the answer. Raises PaymentProviderUnavailable, NoPayoutAccount."""
    account = PayoutAccount.objects.filter(pk=organization_id).first()
    if account is None or account.stripe_account_id is None:
        raise NoPayoutAccount
    try:
        found = (gateway or stripe_gateway()).connect.retrieve_account(account.stripe_account_id)
    except AccountUnknown:
        PayoutAccount.objects.filter(pk=account.pk).update(state=State.CLOSED, checked_at=Now(), next_check_at=None)
    else:
        _keep(account, found)
    account.refresh_from_db()
    return account


def set_terms(
    *, organization: Organization, schedule: str | None = None, minimum_cents: int | None = None
) -> PayoutAccount:
    """Change when payouts leave by themselves, and the least that one carries; None leaves a term as it is.

    A new schedule begins with its next day. Raises InvalidTerms, NoPayoutAccount.
    """
    account = PayoutAccount.objects.filter(organization=organization).first()
    if account is None:
        raise NoPayoutAccount
    if schedule is not None and schedule not in PayoutAccount.Schedule.values:
        raise InvalidTerms(f"a schedule is one of {', '.join(PayoutAccount.Schedule.values)}", field="schedule")
    least = least_minimum_cents()
    if minimum_cents is not None and not least <= minimum_cents <= MAX_MINIMUM_CENTS:
        message = f"a minimum is between {usd(least, CENTS)} and ${MAX_MINIMUM_CENTS // 100:,}"
        raise InvalidTerms(message, field="minimum_cents")
    changes: dict[str, object] = {}
    if schedule is not None and schedule != account.schedule:
        changes |= {"schedule": schedule, "last_scheduled_on": timezone.now().date()}
    if minimum_cents is not None:
        changes["minimum_cents"] = minimum_cents
    if changes:
        with transaction.atomic():
            PayoutAccount.objects.filter(pk=account.pk).update(**changes)
            account.refresh_from_db()
            terms: dict[str, audit.Value] = {"schedule": account.schedule, "minimum_cents": account.minimum_cents}
            audit.record(organization=organization, act="payout.terms_changed", data=terms)
    return account


def _keep(account: PayoutAccount, found: ConnectedAccount) -> None:
    state = _state(account, found)
    if state == State.STARTED:
        pause = min(CHECK_STARTED * 2 ** min(account.checks, 12), CHECK_SETTLED)
    else:
        pause = CHECK_SETTLED
    PayoutAccount.objects.filter(pk=account.pk).update(
        state=state,
        details_submitted=found.details_submitted,
        requirements=list(found.requirements),
        disabled_reason=found.disabled_reason,
        bank_name=found.bank_name,
        bank_last4=found.bank_last4,
        checked_at=Now(),
        next_check_at=Now() + pause,
        checks=F("checks") + 1 if state == account.state else 0,
    )


def _state(account: PayoutAccount, found: ConnectedAccount) -> str:
    if found.disabled_reason.startswith("rejected."):
        return State.CLOSED
    if found.takes_transfers and found.pays_out:
        return State.ACTIVE
    return State.STARTED if account.state == State.STARTED and not found.details_submitted else State.RESTRICTED


def _stripe_id(account: PayoutAccount) -> str:
    assert account.stripe_account_id is not None, "an account is opened once it exists at Stripe"
    return account.stripe_account_id
