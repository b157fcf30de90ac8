"""The tree of budgets: who may hang where, and that no change of it loses a node, a path or spending."""

from __future__ import annotations

import pytest

from billing.budgets import selectors, tree
from billing.budgets.limits import Limits
from billing.errors import BudgetTreeRefusal
from billing.models import BudgetNode
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import ApiKey, Organization
from marketplace.accounts.services import create_api_key, rotate_api_key
from tests.billing.support import make_organization

pytestmark = pytest.mark.django_db


def team(organization: Organization, name: str, parent: BudgetNode | None = None) -> BudgetNode:
    parent_id = None if parent is None else parent.pk
    return tree.create_team(organization=organization, name=name, parent_id=parent_id, limits=Limits())


def api_key(organization: Organization, name: str = "key") -> ApiKey:
    return create_api_key(organization=organization, name=name, scopes=["predict"], created_by=None)[0]


def paths_are_whole(organization: Organization) -> bool:
    """Whether every path is that of the parents."""
    nodes = {node.pk: node for node in BudgetNode.objects.filter(organization=organization)}
    return all(
        node.path == [*(nodes[node.parent_id].path if node.parent_id else ()), node.pk] for node in nodes.values()
    )


def test_a_node_hangs_below_the_root_until_it_is_moved_and_takes_what_is_below_it_along() -> None:
    organization = make_organization()
    research, data = team(organization, "research"), team(organization, "data")
    key = tree.key_node(api_key(organization))
    user = tree.end_user_node(key=key, end_user="ada")
    root = tree.organization_node(organization)
    assert [root.parent_id, research.parent_id, key.parent_id, user.parent_id] == [None, root.pk, root.pk, key.pk]
    inner = team(organization, "inner", research)
    tree.move(key, parent_id=inner.pk)
    tree.move(inner, parent_id=data.pk)
    user.refresh_from_db()
    assert user.path == [root.pk, data.pk, inner.pk, key.pk, user.pk] and paths_are_whole(organization)
    assert tree.move(inner, parent_id=None).parent_id == root.pk and paths_are_whole(organization)
    lines = [(line.depth, line.node.name) for line in selectors.tree_of(organization)]
    assert lines == [(0, organization.slug), (1, "data"), (1, "inner"), (2, "key"), (1, "research")]


def test_a_rotation_changes_nothing() -> None:
    organization = make_organization()
    key = api_key(organization)
    node = tree.set_limits(tree.key_node(key), Limits(daily_nano_usd=5))
    rotated, _ = rotate_api_key(key=key, created_by=None)
    assert tree.key_node(rotated) == node == selectors.budget_of_key(rotated)
    assert list(selectors.budgets_of_keys(organization)) == [key.pk]


def test_a_team_is_never_below_itself_nor_in_another_organization() -> None:
    organization, stranger = make_organization(), make_organization()
    outer = team(organization, "outer")
    inner = team(organization, "inner", outer)
    foreign = team(stranger, "foreign")
    key = tree.key_node(api_key(organization))
    for parent in (outer, inner, foreign, key):
        with pytest.raises(InvalidInput):
            tree.move(outer, parent_id=parent.pk)
    with pytest.raises(InvalidInput):
        tree.move(tree.organization_node(organization), parent_id=outer.pk)
    with pytest.raises(InvalidInput):
        team(organization, "x", foreign)
    assert paths_are_whole(organization) and selectors.node_of(organization, foreign.pk) is None


def test_a_tree_has_a_depth_and_an_organization_a_number_of_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    organization = make_organization()
    deepest = None
    for level in range(tree.MAX_DEPTH - 1):
        deepest = team(organization, f"level {level}", deepest)
    with pytest.raises(BudgetTreeRefusal):
        team(organization, "too deep", deepest)
    chain = team(organization, "chain")
    team(organization, "link", chain)
    with pytest.raises(BudgetTreeRefusal):
        tree.move(chain, parent_id=BudgetNode.objects.get(name=f"level {tree.MAX_DEPTH - 3}").pk)
    assert paths_are_whole(organization)
    monkeypatch.setattr(tree, "MAX_TEAMS", BudgetNode.objects.filter(kind="team").count())
    with pytest.raises(BudgetTreeRefusal):
        team(organization, "one more")


def test_only_an_empty_team_is_deleted() -> None:
    organization = make_organization()
    outer = team(organization, "outer")
    key = tree.move(tree.key_node(api_key(organization)), parent_id=outer.pk)
    for node in (outer, key, tree.organization_node(organization)):
        with pytest.raises(BudgetTreeRefusal):
            tree.delete_team(node)
    tree.move(key, parent_id=None)
    tree.delete_team(outer)
    assert not BudgetNode.objects.filter(pk=outer.pk).exists() and BudgetNode.objects.filter(pk=key.pk).exists()


@pytest.mark.parametrize("wrong", [-1, 10**15 + 1])
def test_a_limit_is_neither_negative_nor_absurd(wrong: int) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Limits(monthly_nano_usd=wrong)
    assert refusal.value.field == "monthly_limit_nano_usd"


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 101])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    organization = make_organization()
    with pytest.raises(InvalidInput):
        team(organization, name)
    assert not BudgetNode.objects.filter(kind="team").exists()


def test_end_users_are_named_as_requests_name_them() -> None:
    organization = make_organization()
    key = tree.key_node(api_key(organization))
    one = tree.end_user_node(key=key, end_user="ada@example.com")
    assert tree.end_user_node(key=key, end_user="ada@example.com") == one
    assert list(selectors.end_users_of(key)) == [one]
    for name in ("", "x" * 65, "a\0"):
        with pytest.raises(InvalidInput):
            tree.end_user_node(key=key, end_user=name)
    with pytest.raises(InvalidInput):
        tree.end_user_node(key=tree.organization_node(organization), end_user="ada")
    with pytest.raises(InvalidInput):
        tree.set_end_user_limits(one, Limits())
    limited = tree.set_end_user_limits(key, Limits(total_nano_usd=7))
    assert limited.end_user_total_limit_nano_usd == 7 and limited.total_limit_nano_usd is None
