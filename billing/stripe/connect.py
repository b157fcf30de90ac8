"""Stripe Connect: creators' accounts (Express), transfers to them, and payouts from there to their banks."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import UUID

from billing.errors import BillingError, PaymentProviderUnavailable
from billing.stripe.calls import CURRENCY, pages, reference_id, translated

if TYPE_CHECKING:
    import stripe

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

COUNTRY = "US"  # an account in another country would need cross-border transfers and conversion
# Stripe refuses for a while: what was asked succeeds once our balance there suffices.
_PASSING = frozenset({"balance_insufficient", "insufficient_funds"})
_MAX_LISTED = 300


class PayoutRefused(BillingError):
    """Stripe refused a transfer, a payout or a reversal for good: nothing moved. `reason` is Stripe's code."""

    def __init__(self, reason: str) -> None:
        """Keep Stripe's code."""
        super().__init__(f"Stripe refused: {reason}")
        self.reason = reason


class PayoutPostponed(BillingError):
    """Stripe refused for now: nothing moved. Stripe repeats the refusal for this key, so the next try has another.

    `reason` is Stripe's code.
    """

    def __init__(self, reason: str) -> None:
        """Keep Stripe's code."""
        super().__init__(f"Stripe refused for now: {reason}")
        self.reason = reason


class AccountUnknown(BillingError):
    """Stripe does not know the creator's account, or has taken it from the platform."""


@dataclass(frozen=True, slots=True)
class ConnectedAccount:
    """A creator's account as it is now."""

    id: str
    details_submitted: bool
    takes_transfers: bool
    pays_out: bool
    requirements: tuple[str, ...]  # what Stripe asks for now
    disabled_reason: str
    bank_name: str
    bank_last4: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Money moved from the platform's balance to a creator's."""

    id: str
    amount_cents: int
    currency: str
    destination: str
    reversed_cents: int
    reversal_id: str | None  # the newest
    balance_transaction_id: str
    reversal_balance_transaction_id: str


@dataclass(frozen=True, slots=True)
class BankPayout:
    """Money on its way from a creator's balance to their bank."""

    id: str
    amount_cents: int
    currency: str
    status: str  # pending, in_transit, paid, failed, canceled
    failure_code: str
    arrives_on: date


def _judged(call: Callable[P, T]) -> Callable[P, T]:
    """Tell a refusal for good (PayoutRefused) from one for now (PayoutPostponed), and both from an unknown outcome."""

    @translated
    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        import stripe

        try:
            return call(*args, **kwargs)
        except (stripe.InvalidRequestError, stripe.PermissionError) as error:
            reason = error.code or "refused"
            logger.warning("Stripe %s: refused: %s", call.__name__, reason)
            if reason in _PASSING:
                raise PayoutPostponed(reason) from error
            if error.http_status in (409, 429):  # its own locks and limits
                raise PaymentProviderUnavailable from error
            raise PayoutRefused(reason[:64]) from error

    return wrapper


class Connect:
    """Calls about creators' accounts and their money. Every write carries an idempotency key.

    Stripe forgets keys after a day, so a transfer or payout is looked for before it is made: an answer may be lost for
    longer.
    """

    def __init__(self, client: stripe.StripeClient) -> None:
        self._client = client

    @translated
    def create_account(self, *, organization_id: UUID, name: str) -> str:
        """Make an Express account that pays out only when told to; return its id. Raises PaymentProviderUnavailable."""
        account = self._client.v1.accounts.create(
            {
                "type": "express",
                "country": COUNTRY,
                "capabilities": {"transfers": {"requested": True}},
                "business_profile": {"name": name, "product_description": "Predictions from models on a marketplace"},
                "settings": {"payouts": {"schedule": {"interval": "manual"}}},
                "metadata": {"organization_id": str(organization_id)},
            },
            {"idempotency_key": f"account:{organization_id}"},
        )
        return str(account.id)

    @translated
    def onboarding_url(self, account_id: str, *, return_url: str, refresh_url: str) -> str:
        """Open Stripe's page for details and bank account, for one visit. Raises PaymentProviderUnavailable."""
        link = self._client.v1.account_links.create(
            {
                "account": account_id,
                "type": "account_onboarding",
                "return_url": return_url,
                "refresh_url": refresh_url,
                "collection_options": {"fields": "eventually_due"},
            }
        )
        return str(link.url)

    @translated
    def dashboard_url(self, account_id: str) -> str:
        """Open the creator's own pages at Stripe, for one visit. Raises PaymentProviderUnavailable."""
        return str(self._client.v1.accounts.login_links.create(account_id).url)

    @translated
    def retrieve_account(self, account_id: str) -> ConnectedAccount:
        """Fetch an account as it is now. Raises AccountUnknown, PaymentProviderUnavailable."""
        import stripe

        try:
            return _account(self._client.v1.accounts.retrieve(account_id))
        except stripe.PermissionError:
            raise AccountUnknown("the creator's account is not the platform's any more") from None
        except stripe.InvalidRequestError as error:
            if error.code == "resource_missing":
                raise AccountUnknown("there is no such account at Stripe") from None
            raise

    @_judged
    def transfer(self, *, payout_id: UUID, account_id: str, amount_cents: int, refusals: int) -> Transfer:
        """Move money to a creator's account, once per payout. `refusals`: how often Stripe refused it before.

        Raises PayoutRefused, PayoutPostponed, PaymentProviderUnavailable.
        """
        group = f"payout:{payout_id}"
        listed = self._client.v1.transfers.list({"transfer_group": group, "limit": 1})
        if listed.data:
            return self._transfer(listed.data[0].id)
        made = self._client.v1.transfers.create(
            {
                "amount": amount_cents,
                "currency": CURRENCY,
                "destination": account_id,
                "transfer_group": group,
                "metadata": {"payout_id": str(payout_id)},
            },
            {"idempotency_key": _key(group, refusals)},
        )
        return self._transfer(made.id)

    @_judged
    def retrieve_transfer(self, transfer_id: str) -> Transfer:
        """Fetch a transfer with its reversals. Raises PayoutRefused, PaymentProviderUnavailable."""
        return self._transfer(transfer_id)

    @_judged
    def reverse_transfer(self, transfer_id: str, *, payout_id: UUID, amount_cents: int, refusals: int) -> Transfer:
        """Take a transfer back, once. Raises PayoutRefused, PayoutPostponed, PaymentProviderUnavailable."""
        found = self._transfer(transfer_id)
        if found.reversed_cents == 0:
            self._client.v1.transfers.reversals.create(
                transfer_id,
                {"amount": amount_cents, "metadata": {"payout_id": str(payout_id)}},
                {"idempotency_key": _key(f"payout:{payout_id}:return", refusals)},
            )
            found = self._transfer(transfer_id)
        return found

    @_judged
    def pay_out(
        self, *, payout_id: UUID, account_id: str, amount_cents: int, since: datetime, refusals: int
    ) -> BankPayout:
        """Send money from a creator's account to their bank, once per payout; `since` is when its transfer was made.

        Raises PayoutRefused, PayoutPostponed, PaymentProviderUnavailable.
        """
        account: Any = {"stripe_account": account_id}
        listed = self._client.v1.payouts.list({"created": {"gte": int(since.timestamp()) - 60}}, account)
        for found, _number in zip(pages(listed), range(_MAX_LISTED), strict=False):
            if getattr(found.metadata, "payout_id", None) == str(payout_id):
                return _bank_payout(found)
        made = self._client.v1.payouts.create(
            {"amount": amount_cents, "currency": CURRENCY, "metadata": {"payout_id": str(payout_id)}},
            account | {"idempotency_key": _key(f"payout:{payout_id}:bank", refusals)},
        )
        return _bank_payout(made)

    @_judged
    def retrieve_bank_payout(self, bank_payout_id: str, *, account_id: str) -> BankPayout:
        """Fetch a payout of a creator's account. Raises PayoutRefused, PaymentProviderUnavailable."""
        return _bank_payout(self._client.v1.payouts.retrieve(bank_payout_id, None, {"stripe_account": account_id}))

    def _transfer(self, transfer_id: str) -> Transfer:
        return _parse_transfer(self._client.v1.transfers.retrieve(transfer_id))


def _key(name: str, refusals: int) -> str:
    """Return the idempotency key of the next try: another one only after a refusal, which moved nothing."""
    return f"{name}:{refusals}" if refusals else name


def _account(account: Any) -> ConnectedAccount:
    capabilities = getattr(account, "capabilities", None)
    requirements = getattr(account, "requirements", None)
    banks = getattr(getattr(account, "external_accounts", None), "data", None) or []
    bank = next((found for found in banks if getattr(found, "default_for_currency", False)), None)
    due = [*(getattr(requirements, "past_due", None) or []), *(getattr(requirements, "currently_due", None) or [])]
    return ConnectedAccount(
        id=account.id,
        details_submitted=bool(account.details_submitted),
        takes_transfers=getattr(capabilities, "transfers", None) == "active",
        pays_out=bool(account.payouts_enabled),
        requirements=tuple(dict.fromkeys(str(name)[:100] for name in due)),
        disabled_reason=str(getattr(requirements, "disabled_reason", None) or "")[:100],
        bank_name=str(getattr(bank, "bank_name", None) or "")[:100],
        bank_last4=str(getattr(bank, "last4", None) or "")[:4],
    )


def _parse_transfer(transfer: Any) -> Transfer:
    reversals = list(transfer.reversals.data)
    newest = reversals[0] if reversals else None
    return Transfer(
        id=transfer.id,
        amount_cents=transfer.amount,
        currency=transfer.currency,
        destination=reference_id(transfer.destination) or "",
        reversed_cents=transfer.amount_reversed,
        reversal_id=newest.id if newest is not None else None,
        balance_transaction_id=reference_id(transfer.balance_transaction) or "",
        reversal_balance_transaction_id="" if newest is None else reference_id(newest.balance_transaction) or "",
    )


def _bank_payout(payout: Any) -> BankPayout:
    return BankPayout(
        id=payout.id,
        amount_cents=payout.amount,
        currency=payout.currency,
        status=payout.status,
        failure_code=str(payout.failure_code or "")[:64],
        arrives_on=datetime.fromtimestamp(payout.arrival_date, tz=UTC).date(),
    )
