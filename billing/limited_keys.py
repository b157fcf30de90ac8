"""API keys that are born with a budget, which all rotations of the key share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from django.db import transaction

from billing.models import BudgetNode
from marketplace.accounts import services as accounts
from marketplace.accounts.models import ApiKey, Organization, User


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a key may spend each calendar month (UTC) and in all, in nano-dollars; None is no limit."""

    monthly_nano_usd: int | None = None
    total_nano_usd: int | None = None


@transaction.atomic
def create_limited_key(
    *,
    organization: Organization,
    name: str,
    scopes: list[str],
    created_by: User | None,
    expires_at: datetime | None,
    limits: Limits,
) -> tuple[ApiKey, str]:
    """Create a key with a budget from its first moment on. Raises what `accounts.services.create_api_key` does."""
    key, text = accounts.create_api_key(
        organization=organization, name=name, scopes=scopes, created_by=created_by, expires_at=expires_at
    )
    if limits != Limits():
        set_key_budget(
            api_key=key,
            monthly_limit_nano_usd=limits.monthly_nano_usd,
            total_limit_nano_usd=limits.total_nano_usd,
        )
    return key, text


def set_key_budget(
    *, api_key: ApiKey, monthly_limit_nano_usd: int | None, total_limit_nano_usd: int | None
) -> BudgetNode:
    """Limit the spending of a key and all its rotations per calendar month (UTC) and in all, from now on.

    None lifts a limit. Raises ValueError for a negative limit.
    """
    if min(monthly_limit_nano_usd or 0, total_limit_nano_usd or 0) < 0:
        raise ValueError("a limit is not negative")
    new_id = uuid4()
    node, _created = BudgetNode.objects.update_or_create(
        api_key_id=api_key.line_id,
        defaults={"monthly_limit_nano_usd": monthly_limit_nano_usd, "total_limit_nano_usd": total_limit_nano_usd},
        create_defaults={
            "id": new_id,
            "path": [new_id],
            "organization_id": api_key.organization_id,
            "kind": BudgetNode.Kind.KEY,
            "name": api_key.name,
            "monthly_limit_nano_usd": monthly_limit_nano_usd,
            "total_limit_nano_usd": total_limit_nano_usd,
        },
    )
    return node


def budget_of(key: ApiKey) -> BudgetNode | None:
    """Return the budget of the key's line, if it ever had one."""
    return BudgetNode.objects.filter(api_key_id=key.line_id).first()
