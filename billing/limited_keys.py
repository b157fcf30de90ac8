"""API keys that are born with a budget, which all rotations of the key share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction

from billing.models import KeyBudget
from billing.services import set_key_budget
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


def budget_of(key: ApiKey) -> KeyBudget | None:
    """Return the budget of the key's line, if it ever had one."""
    try:
        return (key.first_key or key).budget
    except ObjectDoesNotExist:
        return None
