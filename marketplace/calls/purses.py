"""Purses: what one run of the platform may spend of an organization's credit, and for how long."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from billing.budgets.tree import delete_key_node, limits_above
from billing.limited_keys import Limits, budget_of, create_limited_key
from marketplace.accounts.key_reach import acting_key
from marketplace.accounts.models import ApiKey, Organization, User
from marketplace.accounts.services import revoke_api_key

LIFETIME = timedelta(hours=20)  # shorter than answers are kept: a call made twice is always found


def open_purse(
    *,
    organization: Organization,
    name: str,
    budget_nano_usd: int,
    created_by: User | None = None,
    lifetime: timedelta = LIFETIME,
) -> ApiKey:
    """Return a key that may spend `budget_nano_usd` in all, until it is closed and for `lifetime` at most.

    A key that begins the run binds it: the purse has its models and its guards, ends with it, and spends of its budget.
    Raises InvalidInput for a name over 100 characters or a budget out of range, NotAllowed past the limit of keys or
    beyond what the key may spend.
    """
    maker, ends = acting_key(), timezone.now() + lifetime
    key, _ = create_limited_key(
        organization=organization,
        name=name,
        scopes=[ApiKey.Scope.PREDICT],
        created_by=created_by,
        expires_at=ends if maker is None or maker.expires_at is None else min(ends, maker.expires_at),
        limits=Limits(
            total_nano_usd=budget_nano_usd,
            monthly_nano_usd=None if maker is None else limits_above(maker).monthly_nano_usd,
        ),
        guards={} if maker is None else maker.guards,
        networks=() if maker is None else maker.allowed_networks,  # which bind no call of the platform
        models=() if maker is None else maker.allowed_models,
    )
    return key


def spent_nano_usd(purse: ApiKey) -> int:
    """Return what was charged to an open purse so far."""
    node = budget_of(purse)
    return node.spent_total_nano_usd if node else 0


def close_purse(purse: ApiKey) -> None:
    """End the purse: its key is revoked, and its budget leaves the tree once nothing is in flight. Idempotent."""
    revoke_api_key(key=purse)
    delete_key_node(purse)
