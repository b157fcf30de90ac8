"""The limits of one node, in nano-dollars; None is no limit."""

from __future__ import annotations

from dataclasses import dataclass, fields

from billing.models import BudgetNode
from marketplace.accounts.errors import InvalidInput

MAX_LIMIT_NANO_USD = 10**15  # a million dollars


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that may be spent on one request, each day, each month (both of UTC) and in all.

    Raises InvalidInput, which names the field as the API does, for a limit that is negative or above a million dollars.
    """

    per_request_nano_usd: int | None = None
    daily_nano_usd: int | None = None
    monthly_nano_usd: int | None = None
    total_nano_usd: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is not None and not 0 <= limit <= MAX_LIMIT_NANO_USD:
                name = field.name.replace("_nano_usd", "_limit_nano_usd")
                raise InvalidInput(f"must be from 0 to {MAX_LIMIT_NANO_USD}", field=name)

    @property
    def columns(self) -> dict[str, int | None]:
        """Return the node's own limits by column."""
        return {
            "per_request_limit_nano_usd": self.per_request_nano_usd,
            "daily_limit_nano_usd": self.daily_nano_usd,
            "monthly_limit_nano_usd": self.monthly_nano_usd,
            "total_limit_nano_usd": self.total_nano_usd,
        }

    @property
    def end_user_columns(self) -> dict[str, int | None]:
        """Return the same as limits of each end user below the node."""
        return {f"end_user_{name}": limit for name, limit in self.columns.items()}


def limits_of(node: BudgetNode) -> Limits:
    """Return the node's own limits."""
    return Limits(
        node.per_request_limit_nano_usd,
        node.daily_limit_nano_usd,
        node.monthly_limit_nano_usd,
        node.total_limit_nano_usd,
    )


def end_user_limits_of(node: BudgetNode) -> Limits:
    """Return the limits of each end user below the node."""
    return Limits(
        node.end_user_per_request_limit_nano_usd,
        node.end_user_daily_limit_nano_usd,
        node.end_user_monthly_limit_nano_usd,
        node.end_user_total_limit_nano_usd,
    )
