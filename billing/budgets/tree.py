"""Writes of the tree: nodes and their limits. Spend and holds of a node are written by the hot path's functions alone.

A node counts what is placed after it came into its path: predictions in flight stay on the path that they were placed
on, and moving a node takes no spend along.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, astuple
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from billing.budgets.limits import Limits, end_user_limits_of, limits_of
from billing.errors import BudgetTreeRefusal
from billing.locks import lock_budget_branch
from billing.models import BudgetNode
from marketplace.accounts import audit
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.key_reach import Reach, acting_key, beyond_own, is_within
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import ApiKey, Organization

MAX_TEAMS = 200  # of one organization
MAX_DEPTH = 6  # nodes from the root to a key; an end user is one below
MAX_NAME = 100  # characters
MAX_END_USER = 64  # characters

Kind = BudgetNode.Kind


@transaction.atomic
def organization_node(organization: Organization) -> BudgetNode:
    """Return the root, which is made at first use; nodes that had no parent come below it."""
    root = BudgetNode.objects.filter(organization=organization, kind=Kind.ORGANIZATION).first()
    if root is not None:
        return root
    lock_organization(organization.pk)
    root = BudgetNode.objects.filter(organization=organization, kind=Kind.ORGANIZATION).first()
    if root is None:
        root = _create(organization, None, Kind.ORGANIZATION, name=organization.slug)
        orphans = BudgetNode.objects.filter(organization=organization, parent=None).exclude(kind=Kind.RUN)
        for orphan in orphans.exclude(pk=root.pk):
            _hang(orphan, root)
    return root


@transaction.atomic
def create_team(*, organization: Organization, name: str, parent_id: UUID | None, limits: Limits) -> BudgetNode:
    """Create a team, or a project, below the root or another team.

    Raises InvalidInput, and BudgetTreeRefusal past the limits of number and depth.
    """
    name = _checked_name(name)
    root = organization_node(organization)
    lock_organization(organization.pk)
    parent = root if parent_id is None else _parent(organization, parent_id)
    if BudgetNode.objects.filter(organization=organization, kind=Kind.TEAM).count() >= MAX_TEAMS:
        raise BudgetTreeRefusal(f"an organization may have {MAX_TEAMS} teams")
    _check_depth(len(parent.path) + 1)
    team = _create(organization, parent, Kind.TEAM, name=name, **limits.columns)
    _record(team, "budget.created")
    return team


@transaction.atomic
def key_node(api_key: ApiKey, *, below: BudgetNode | None = None) -> BudgetNode:
    """Return the node of the key's line, made at first use: `below` that of the key that made it, else below the root,
    as soon as there is one."""
    node = BudgetNode.objects.filter(api_key_id=api_key.line_id).first()
    if node is None:
        lock_organization(api_key.organization_id)
        node = BudgetNode.objects.filter(api_key_id=api_key.line_id).first()
    if node is None:
        root = BudgetNode.objects.filter(organization_id=api_key.organization_id, kind=Kind.ORGANIZATION).first()
        if below is not None:
            _check_depth(len(below.path) + 1)
        node = _create(api_key.organization, below or root, Kind.KEY, name=api_key.name, api_key_id=api_key.line_id)
    return node


@transaction.atomic
def end_user_node(*, key: BudgetNode, end_user: str) -> BudgetNode:
    """Return the node of an end user of a key, so that it can have limits of its own before its first request.

    Raises InvalidInput for a name that a request could not give, or a node that is not a key's.
    """
    if not 1 <= len(end_user) <= MAX_END_USER or not end_user.isprintable():
        raise InvalidInput(f"must be 1 to {MAX_END_USER} printable characters", field="end_user")
    if key.kind != Kind.KEY:
        raise InvalidInput("end users are below the budget of a key", field="end_user")
    lock_organization(key.organization_id)
    found = BudgetNode.objects.filter(parent=key, kind=Kind.END_USER, end_user=end_user).first()
    return found or _create(key.organization, key, Kind.END_USER, end_user=end_user)


@transaction.atomic
def set_limits(node: BudgetNode, limits: Limits) -> BudgetNode:
    """Replace the node's limits; they hold from the next request on.

    Raises NotAllowed for a key that would lift its own, or give more than it has.
    """
    _require_limits(node, wanted=limits, now=limits_of(node))
    BudgetNode.objects.filter(pk=node.pk).update(**limits.columns)
    _record(node, "budget.limited", limits)
    return BudgetNode.objects.get(pk=node.pk)


@transaction.atomic
def set_end_user_limits(node: BudgetNode, limits: Limits) -> BudgetNode:
    """Replace the limits of each end user below the node; an end user's own limits go before them.

    Raises InvalidInput for the node of an end user.
    """
    if node.kind == Kind.END_USER:
        raise InvalidInput("an end user has no end users", field="end_user_limits")
    _require_limits(node, wanted=limits, now=end_user_limits_of(node))
    BudgetNode.objects.filter(pk=node.pk).update(**limits.end_user_columns)
    _record(node, "budget.end_users_limited", limits)
    return BudgetNode.objects.get(pk=node.pk)


@transaction.atomic
def rename(node: BudgetNode, name: str) -> BudgetNode:
    """Give the node another name. Raises InvalidInput."""
    BudgetNode.objects.filter(pk=node.pk).update(name=_checked_name(name))
    _record(node, "budget.renamed")
    return BudgetNode.objects.get(pk=node.pk)


@transaction.atomic
def move(node: BudgetNode, *, parent_id: UUID | None) -> BudgetNode:
    """Hang a team or a key, with all below it, under another team, or with None under the root.

    Raises InvalidInput for a node that cannot be moved or a parent that is below it, BudgetTreeRefusal past the depth.
    """
    if node.kind not in (Kind.TEAM, Kind.KEY):
        raise InvalidInput("only teams and keys can be moved", field="parent")
    maker = acting_key()
    if maker is not None and limits_above(maker) != Limits():
        raise beyond_own("parent")  # out of a team is out of its limits
    root = organization_node(node.organization)
    lock_organization(node.organization_id)
    node = BudgetNode.objects.get(pk=node.pk)
    parent = root if parent_id is None else _parent(node.organization, parent_id)
    if node.pk in parent.path:
        raise InvalidInput("a team cannot be below itself", field="parent")
    if parent.pk != node.parent_id:
        below = _branch(node).exclude(kind=Kind.END_USER)
        deepest = max(len(path) for path in below.values_list("path", flat=True))
        _check_depth(len(parent.path) + 1 + deepest - len(node.path))
        _hang(node, parent)
        _record(node, "budget.moved")
    return BudgetNode.objects.get(pk=node.pk)


@transaction.atomic
def delete_team(node: BudgetNode) -> None:
    """Delete a team below which nothing hangs. Raises BudgetTreeRefusal for any other node."""
    lock_organization(node.organization_id)
    if node.kind != Kind.TEAM:
        raise BudgetTreeRefusal("only a team can be deleted; lift the limits of another node instead")
    if BudgetNode.objects.filter(parent=node).exists():
        raise BudgetTreeRefusal("move the teams and keys below it first")
    lock_budget_branch(node)
    if BudgetNode.objects.get(pk=node.pk).held_nano_usd:
        raise BudgetTreeRefusal("predictions of this team are in flight; try again when they have ended")
    BudgetNode.objects.filter(pk=node.pk).delete()
    _record(node, "budget.deleted")


@transaction.atomic
def delete_key_node(api_key: ApiKey) -> None:
    """Take the node of a line that has ended out of the tree, unless end users or predictions in flight need it."""
    node = BudgetNode.objects.filter(api_key_id=api_key.line_id).first()
    if node is None:
        return
    lock_organization(node.organization_id)
    lock_budget_branch(node)
    BudgetNode.objects.filter(pk=node.pk, held_nano_usd=0, children=None).delete()


def limits_above(api_key: ApiKey) -> Limits:
    """Return what a key's line may spend by its own budget and the teams' above it, the organization's left out."""
    found = [limits_of(node) for node in _path_of(api_key) if node.kind != Kind.ORGANIZATION]
    least = (
        min((one for one in row if one is not None), default=None) for row in zip(*map(astuple, found), strict=True)
    )
    return Limits(*least)


def _path_of(api_key: ApiKey) -> list[BudgetNode]:
    node = BudgetNode.objects.filter(api_key_id=api_key.line_id).first()
    return [] if node is None else list(BudgetNode.objects.filter(pk__in=node.path))


def _require_limits(node: BudgetNode, *, wanted: Limits, now: Limits) -> None:
    """Raise NotAllowed if the acting key may not limit the node so.

    One with a budget lifts nothing that binds itself, and gives others no more than it has; it may always take away.
    """
    maker = acting_key()
    most = Limits() if maker is None else limits_above(maker)
    asked = Reach(limits=astuple(wanted))
    if maker is None or most == Limits() or is_within(asked, Reach(limits=astuple(now))):
        return
    binds_itself = node.kind == Kind.ORGANIZATION or node.pk in {one.pk for one in _path_of(maker)}
    if binds_itself or not is_within(asked, Reach(limits=astuple(most))):
        raise beyond_own("limits")


def _record(node: BudgetNode, act: str, limits: Limits | None = None) -> None:
    data = {} if limits is None else asdict(limits)
    audit.record(organization=node.organization, act=act, subject=str(node.pk), data={"kind": node.kind, **data})


def _create(organization: Organization, parent: BudgetNode | None, kind: Kind, **fields: object) -> BudgetNode:
    node_id = uuid.uuid4()
    path = [*(parent.path if parent else ()), node_id]
    BudgetNode.objects.bulk_create(
        [BudgetNode(id=node_id, organization=organization, parent=parent, kind=kind, path=path, **fields)]
    )
    return BudgetNode.objects.get(pk=node_id)  # with the day and month that the database chose


def _hang(node: BudgetNode, parent: BudgetNode) -> None:
    """Move the node below the parent, and rewrite the paths of all below it."""
    lock_budget_branch(node)
    above = len(node.path) - 1
    rows = list(_branch(node).only("id", "path"))
    for row in rows:
        row.path = [*parent.path, *row.path[above:]]
    BudgetNode.objects.bulk_update(rows, ["path"], batch_size=1_000)
    BudgetNode.objects.filter(pk=node.pk).update(parent=parent)


def _branch(node: BudgetNode) -> QuerySet[BudgetNode]:
    return BudgetNode.objects.filter(organization_id=node.organization_id, path__contains=[node.pk])


def _parent(organization: Organization, parent_id: UUID) -> BudgetNode:
    parent = BudgetNode.objects.filter(
        organization=organization, pk=parent_id, kind__in=(Kind.ORGANIZATION, Kind.TEAM)
    ).first()
    if parent is None:
        raise InvalidInput("must be a team of this organization", field="parent")
    return parent


def _checked_name(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidInput(f"must be 1 to {MAX_NAME} printable characters", field="name")
    return name


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BudgetTreeRefusal(f"a budget tree has at most {MAX_DEPTH} levels above its end users")
