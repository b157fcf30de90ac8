"""API keys that are born with a budget, which all rotations of the key share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import astuple, replace
from datetime import datetime, timedelta

from django.db import transaction

from billing.budgets.limits import Limits, limits_of
from billing.budgets.tree import key_node, limits_above, set_limits
from billing.models import BudgetNode
from marketplace.accounts import services as accounts
from marketplace.accounts.audit import PLATFORM, Actor
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.key_reach import Reach, acting_key, require_within
from marketplace.accounts.models import ApiKey, Organization, User

__all__ = [
    "Limits",
    "budget_of",
    "create_limited_key",
    "reach_of",
    "require_no_budget",
    "rotate_limited_key",
    "set_key_budget",
]


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
    """Create a key with a budget from its first moment on.

    A key makes none that reaches beyond itself, and where it has a budget, what it makes spends of that, within the
    same limits of a day and a request. Raises NotAllowed, and what `accounts.services.create_api_key` does.
    """
    maker, most = acting_key(), Limits()
    if maker is not None:
        most = limits_above(maker)
        if limits.daily_nano_usd is None and limits.per_request_nano_usd is None:
            limits = replace(limits, daily_nano_usd=most.daily_nano_usd, per_request_nano_usd=most.per_request_nano_usd)
        of_row = (frozenset(scopes), frozenset(models), frozenset(networks), expires_at, dict(guards or {}))
        require_within(Reach(*of_row, astuple(limits)), reach_of(maker))
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
    above = None if maker is None or most == Limits() else key_node(maker)
    if above is not None or limits != Limits():
        set_limits(key_node(key, below=above), limits)
    return key, text


def rotate_limited_key(*, key: ApiKey, created_by: User | None, overlap: timedelta, actor: Actor) -> tuple[ApiKey, str]:
    """Rotate a key, whose budget its successor shares. A key renews none that reaches beyond itself: raises NotAllowed,
    and what `accounts.services.rotate_api_key` does."""
    maker = acting_key()
    if maker is not None and maker.line_id != key.line_id:
        require_within(reach_of(key), reach_of(maker))
    return accounts.rotate_api_key(key=key, created_by=created_by, overlap=overlap, actor=actor)


def reach_of(key: ApiKey) -> Reach:
    """Return what a key reaches, its budget and those of the teams above it included."""
    return Reach.of(key, astuple(limits_above(key)))


def require_no_budget(what: str) -> None:
    """Raise NotAllowed if the acting key has a budget: `what` it would begin is not counted in it."""
    maker = acting_key()
    if maker is not None and limits_above(maker) != Limits():
        raise NotAllowed(
            f"{what} would not be counted in this key's budget: begin it as a person, or with a key without a budget",
            code="beyond_own_limits",
        )


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
