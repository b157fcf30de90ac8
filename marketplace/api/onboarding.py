"""What an organization needs from the apps that `accounts` may not import."""

from __future__ import annotations

from marketplace.accounts.models import Organization


def open_billing_accounts(*, organization: Organization) -> None:
    """Open the wallet and the creator's accounts, in the caller's transaction."""
    # Imported when needed: it brings the Stripe client, which no process should pay for at its start.
    from billing.services import open_accounts

    open_accounts(organization=organization)
