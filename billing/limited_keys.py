"""API keys that are born with a budget, which all rotations of the key share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from django.db import transaction

from billing.budgets.limits import Limits, limits_of
from billing.budgets.tree import key_node, set_limits
from billing.models import BudgetNode
from marketplace.accounts import services as accounts
from marketplace.accounts.audit import PLATFORM, Actor
from marketplace.accounts.models import ApiKey, Organization, User

__all__ = ["Limits", "budget_of", "create_limited_key", "set_key_budget"]


@transaction.atomic
def create_limited_key(
    *,
    organization: Organization,
    name: str,
    scopes: list[str],
    created_by: User | None,
    expires_at: datetime | None,
    limits: Limits,
    guards: Mapping[str, str] | None = None,
    networks: Collection[str] = (),
    models: Collection[str] = (),
    actor: Actor = PLATFORM,
) -> tuple[ApiKey, str]:
    """Create a key with a budget from its first moment on. Raises what `accounts.services.create_api_key` does."""
    key, text = accounts.create_api_key(
        organization=organization,
        name=name,
        scopes=scopes,
        created_by=created_by,
        expires_at=expires_at,
        guards=guards,
        networks=networks,
        models=models,
        actor=actor,
    )
    if limits != Limits():
        set_limits(key_node(key), limits)
    return key, text


def set_key_budget(
    *, api_key: ApiKey, monthly_limit_nano_usd: int | None, total_limit_nano_usd: int | None
) -> BudgetNode:
    """Limit the spending of a key and all its rotations per calendar month (UTC) and in all, from now on.

    None lifts a limit. Raises ValueError for a negative limit.
    """
    if min(monthly_limit_nano_usd or 0, total_limit_nano_usd or 0) < 0:
        raise ValueError("a limit is not negative")
    node = key_node(api_key)
    return set_limits(
        node, replace(limits_of(node), monthly_nano_usd=monthly_limit_nano_usd, total_nano_usd=total_limit_nano_usd)
    )


def budget_of(key: ApiKey) -> BudgetNode | None:
    """Return the budget of the key's line, if it ever had one."""
    return BudgetNode.objects.filter(api_key_id=key.line_id).first()
