"""The reserve: earnings become payable some days after they were made, when most disputes are known.

Whatever leaves the reserve (a correction, a debt) is set against its oldest earnings, so that never more becomes
payable than was earned so long ago. Amounts are nano-dollars.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Sum
from django.utils import timezone

from billing.models import Account, Instant, LedgerTransaction, Payout, Posting
from billing.payouts.books import book_netting, book_release, lock_balances
from billing.periods import post_entries
from marketplace.accounts.models import Organization

NEW_CREATOR_DAYS = 14
TRUSTED_CREATOR_DAYS = 7
TRUSTED_AFTER = 3  # payouts that arrived
_RELEASE = LedgerTransaction.Kind.RESERVE_RELEASE


def reserve_days(organization: Organization) -> int:
    """Return how long earnings of `organization` stay in the reserve: 14 days, and 7 once three payouts arrived."""
    configured: int | None = settings.ENV.payout_reserve_days
    if configured is not None:
        return configured
    arrived = Payout.objects.filter(organization=organization, state=Payout.State.PAID)[:TRUSTED_AFTER].count()
    return TRUSTED_CREATOR_DAYS if arrived >= TRUSTED_AFTER else NEW_CREATOR_DAYS


def settle_balances(organization: Organization) -> None:
    """Bring the creator's balances up to date: debts are netted, matured earnings become payable. Idempotent."""
    net_debt(organization)
    release_matured(organization)


@transaction.atomic
def net_debt(organization: Organization) -> int:
    """Set the reserve, then the payable balance, against what the organization owes; return how much."""
    owing = Account.objects.filter(organization=organization, kind=Account.Kind.RECEIVABLE, posted__lt=0)
    if not owing.exists():
        return 0
    kinds = (Account.Kind.CREATOR_RESERVE, Account.Kind.CREATOR_PAYABLE, Account.Kind.RECEIVABLE)
    reserve, payable, receivable = lock_balances(organization, *kinds)
    from_reserve = min(max(reserve, 0), max(-receivable, 0))
    from_payable = min(max(payable, 0), max(-receivable, 0) - from_reserve)
    if from_reserve + from_payable > 0:
        book_netting(organization, str(uuid4()), from_reserve=from_reserve, from_payable=from_payable)
    return from_reserve + from_payable


def release_matured(organization: Organization) -> int:
    """Move what was earned `reserve_days` ago from the reserve to the payable balance; return how much."""
    account = Account.objects.filter(organization=organization, kind=Account.Kind.CREATOR_RESERVE).first()
    if account is None or account.posted <= 0:
        return 0
    post_entries()  # so that what has just come in counts as young
    matured_at = timezone.now() - timedelta(days=reserve_days(organization))
    through = _matured_through(organization)
    with transaction.atomic():
        (posted,) = lock_balances(organization, Account.Kind.CREATOR_RESERVE)
        last = Posting.objects.filter(account=account).order_by("-sequence").first()
        if last is None:
            return 0
        # Once per state of the account: a release that has no number yet is not seen in `last.balance`.
        reference = f"{account.pk}:{last.sequence}"
        released = min(posted, last.balance) - _came_in_after(account, through)
        if released <= 0 or LedgerTransaction.objects.filter(kind=_RELEASE, reference=reference).exists():
            return 0
        book_release(organization, reference, released, f"earned until {matured_at:%Y-%m-%d %H:%M} UTC")
    return released


def matured(organization: Organization) -> int:
    """Return what of the reserve a payout that is asked for now would release first. Moves nothing."""
    account = Account.objects.filter(organization=organization, kind=Account.Kind.CREATOR_RESERVE).first()
    last = Posting.objects.filter(account=account).order_by("-sequence").first() if account else None
    if account is None or last is None or account.posted <= 0:
        return 0
    young = _came_in_after(account, _matured_through(organization))
    return max(0, min(account.posted, last.balance) - young)


def next_release_at(organization: Organization) -> datetime | None:
    """Return when the oldest earnings that are still in the reserve become payable, or None for an empty reserve."""
    account = Account.objects.filter(organization=organization, kind=Account.Kind.CREATOR_RESERVE).first()
    if account is None or account.posted <= 0:
        return None
    days = timedelta(days=reserve_days(organization))
    through = _matured_through(organization)
    young = Posting.objects.filter(account=account, sequence__gt=through, amount__gt=0).order_by("sequence")
    earned_at = young.values_list("transaction__created_at", flat=True).first()
    return None if earned_at is None else earned_at + days


def _matured_through(organization: Organization) -> int:
    """Return the last ledger sequence that is as old as earnings must be to leave the reserve."""
    matured_at = timezone.now() - timedelta(days=reserve_days(organization))
    return Instant.objects.filter(reached_at__lte=matured_at).aggregate(last=Max("sequence"))["last"] or 0


def _came_in_after(account: Account, through: int) -> int:
    rows = Posting.objects.filter(account=account, sequence__gt=through, amount__gt=0)
    return int(rows.aggregate(total=Sum("amount"))["total"] or 0)
