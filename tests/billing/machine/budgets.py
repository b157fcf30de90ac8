"""The budget tree of the first customer: root, team, a key with its rotations, end users; limits, moves, rotations."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import rule

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.limited_keys import create_limited_key
from billing.models import BudgetNode
from marketplace.accounts.models import ApiKey
from marketplace.accounts.services import rotate_api_key
from tests.billing.machine.world import World

LIMIT = st.sampled_from([None, None, None, 10**9, 10**12]) | st.integers(0, 10**11)


@dataclass
class Node:
    """A node with its limits, and what was spent and is held on it. `end_user_total` limits each end user below."""

    parent: Node | None
    per_request: int | None = None
    monthly: int | None = None
    total: int | None = None
    end_user_total: int | None = None
    is_end_user: bool = False
    spent: int = 0
    held: int = 0
    end_users: dict[str, Node] = field(default_factory=dict)

    @property
    def path(self) -> list[Node]:
        """Return the nodes from the root to this one."""
        return [*(self.parent.path if self.parent else ()), self]

    def room(self) -> int | None:
        """Return the least that a limit of this node leaves."""
        total = self.total
        if self.is_end_user:
            assert self.parent is not None
            limits = [node.end_user_total for node in self.parent.path if node.end_user_total is not None]
            total = limits[-1] if limits else None
        used = self.spent + self.held
        rooms = [limit - used for limit in (total, self.monthly) if limit is not None]
        return min([*rooms, *([] if self.per_request is None else [self.per_request])], default=None)


class Budgets(World):
    """Operations on limits. The machine never runs over the end of a month, so a month's spend is that in all."""

    def arrange(self) -> None:
        super().arrange()
        organization = self.customers[0]
        root = tree.organization_node(organization)
        team = tree.create_team(organization=organization, name="team", parent_id=None, limits=Limits())
        key, _text = create_limited_key(
            organization=organization,
            name="key",
            scopes=["predict"],
            created_by=None,
            expires_at=None,
            limits=Limits(total_nano_usd=10**12),
        )
        self.keys: list[ApiKey] = [key]
        key_node = tree.move(tree.key_node(key), parent_id=team.pk)
        self.root = Node(None)
        self.team = Node(self.root)
        self.key = Node(self.team, total=10**12)
        self.node_ids = {id(self.root): root.pk, id(self.team): team.pk, id(self.key): key_node.pk}

    @property
    def nodes(self) -> list[Node]:
        return [self.root, self.team, self.key]

    def row(self, node: Node) -> BudgetNode:
        return BudgetNode.objects.get(pk=self.node_ids[id(node)])

    def path_of(self, customer: int, end_user: str | None) -> list[Node]:
        """Return the nodes on which a prediction of the first customer's key counts."""
        if customer != 0:
            return []
        path = self.key.path
        if end_user is None or all(node.end_user_total is None for node in path):
            return path
        node = self.key.end_users.setdefault(end_user, Node(self.key, is_end_user=True))
        return [*path, node]

    @rule(which=st.integers(0, 2), per_request=LIMIT, monthly=LIMIT, total=LIMIT)
    def limit(self, which: int, per_request: int | None, monthly: int | None, total: int | None) -> None:
        node = self.nodes[which]
        limits = Limits(per_request_nano_usd=per_request, monthly_nano_usd=monthly, total_nano_usd=total)
        tree.set_limits(self.row(node), limits)
        node.per_request, node.monthly, node.total = per_request, monthly, total

    @rule(which=st.integers(0, 2), total=LIMIT)
    def limit_end_users(self, which: int, total: int | None) -> None:
        node = self.nodes[which]
        tree.set_end_user_limits(self.row(node), Limits(total_nano_usd=total))
        node.end_user_total = total

    @rule(below_team=st.booleans())
    def move_key(self, below_team: bool) -> None:
        """Predictions in flight stay on the path that they were placed on."""
        parent = self.team if below_team else self.root
        tree.move(self.row(self.key), parent_id=self.node_ids[id(parent)])
        self.key.parent = parent

    @rule()
    def rotate(self) -> None:
        """Changes nothing: the new key spends the same budget."""
        key, _text = rotate_api_key(key=self.keys[-1], created_by=None)
        self.keys.append(key)

    def compare_budgets(self) -> None:
        """Compare every node with its row."""
        users = {row.end_user: row for row in BudgetNode.objects.filter(kind=BudgetNode.Kind.END_USER)}
        pairs = [(node, self.row(node)) for node in self.nodes]
        pairs += [(node, users[name]) for name, node in self.key.end_users.items() if name in users]
        for node, row in pairs:
            found = (row.spent_total_nano_usd, row.spent_this_month_nano_usd, row.held_nano_usd)
            assert found == (node.spent, node.spent, node.held)
