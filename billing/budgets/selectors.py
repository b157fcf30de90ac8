"""Reads of the tree, each for one organization, with the spend of the present day and month (UTC)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from uuid import UUID

from django.db.models import QuerySet

from billing.budgets.limits import Limits, limits_of
from billing.models import BudgetNode
from marketplace.accounts.models import ApiKey, Organization

Kind = BudgetNode.Kind


@dataclass(frozen=True, slots=True)
class Period:
    """One limit of a node and what is spent of it, in nano-dollars."""

    name: str  # "day", "month" or "total"
    limit_nano_usd: int
    spent_nano_usd: int

    @property
    def label(self) -> str:
        """Return the period in a sentence."""
        return {"day": "today", "month": "this month", "total": "in all"}[self.name]

    @property
    def percent(self) -> int:
        """Return the spent part of the limit in whole percent, rounded down; 100 for a limit of nothing."""
        return self.spent_nano_usd * 100 // self.limit_nano_usd if self.limit_nano_usd else 100


@dataclass(frozen=True, slots=True)
class Line:
    """A node in the order in which a tree is read, with its depth below the root."""

    node: BudgetNode
    depth: int
    periods: tuple[Period, ...]

    @property
    def indent(self) -> str:
        """Return the sign of the depth for a table."""
        return "· " * self.depth


def nodes_of(organization: Organization) -> QuerySet[BudgetNode]:
    """Return the organization's nodes without its end users and runs."""
    nodes = BudgetNode.objects.filter(organization=organization).exclude(kind__in=(Kind.END_USER, Kind.RUN))
    return nodes.select_related("api_key")


def node_of(organization: Organization, node_id: UUID) -> BudgetNode | None:
    """Return one node of this organization, or None. Runs are no part of the tree."""
    return BudgetNode.objects.filter(organization=organization, pk=node_id).exclude(kind=Kind.RUN).first()


def end_users_of(node: BudgetNode) -> QuerySet[BudgetNode]:
    """Return the end users of a key that have a node: those that a limit was ever applied to."""
    return BudgetNode.objects.filter(parent=node, kind=Kind.END_USER)


def budget_of_key(key: ApiKey) -> BudgetNode | None:
    """Return the node of the key's line, if it has one."""
    return BudgetNode.objects.filter(api_key_id=key.line_id).first()


def budgets_of_keys(organization: Organization) -> dict[UUID, BudgetNode]:
    """Return the nodes of the organization's keys by the first key of each line."""
    nodes = BudgetNode.objects.filter(organization=organization, kind=Kind.KEY)
    return {node.api_key_id: node for node in nodes if node.api_key_id is not None}


def spent_today(node: BudgetNode, today: date | None = None) -> int:
    """Return what was spent today: the counter is that of an earlier day until the first prediction of this one."""
    return node.spent_today_nano_usd if node.day >= (today or _today()) else 0


def spent_this_month(node: BudgetNode, today: date | None = None) -> int:
    """Return what was spent this month, in the same way."""
    return node.spent_this_month_nano_usd if node.month >= (today or _today()).replace(day=1) else 0


def periods_of(node: BudgetNode) -> tuple[Period, ...]:
    """Return each limit of the node that counts over time, with what is spent of it."""
    limits, today = limits_of(node), _today()
    rows = (
        ("day", limits.daily_nano_usd, spent_today(node, today)),
        ("month", limits.monthly_nano_usd, spent_this_month(node, today)),
        ("total", limits.total_nano_usd, node.spent_total_nano_usd),
    )
    return tuple(Period(name, limit, spent) for name, limit, spent in rows if limit is not None)


def tree_of(organization: Organization) -> list[Line]:
    """Return all nodes but end users, each after its parent, siblings by name, teams before keys."""
    children: dict[UUID | None, list[BudgetNode]] = {}
    for node in nodes_of(organization):
        children.setdefault(node.parent_id, []).append(node)
    lines: list[Line] = []

    def descend(parent: UUID | None, depth: int) -> None:
        for node in sorted(children.get(parent, ()), key=lambda one: (one.kind == Kind.KEY, one.name, str(one.pk))):
            lines.append(Line(node, depth, periods_of(node)))
            descend(node.pk, depth + 1)

    descend(None, 0)
    return lines


def has_limit(node: BudgetNode) -> bool:
    """Return whether the node limits anything itself."""
    return limits_of(node) != Limits()


def _today() -> date:
    return datetime.now(UTC).date()
