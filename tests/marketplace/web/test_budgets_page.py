"""The pages of budgets: a member who may see money sets limits and webhooks of their own organization alone."""

from __future__ import annotations

import pytest

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.models import BudgetNode
from tests.marketplace.web.conftest import World

BUDGETS = "/dashboard/budgets"
EMPTY = {"per_request": "", "daily": "", "monthly": "", "total": ""}


def test_a_team_is_made_limited_and_gets_a_key(world: World) -> None:
    client = world.client(world.consumer)
    assert client.post(BUDGETS, EMPTY | {"name": "research", "monthly": "12.50"}).status_code == 302
    team = BudgetNode.objects.get(kind="team")
    assert (team.monthly_limit_nano_usd, team.daily_limit_nano_usd) == (12_500_000_000, None)
    key = tree.key_node(world.key)
    answer = client.post(f"{BUDGETS}/{key.pk}", EMPTY | {"total": "0.000001", "parent": str(team.pk)})
    assert answer.status_code == 302
    key.refresh_from_db()
    assert (key.total_limit_nano_usd, key.parent_id, key.path[1]) == (1_000, team.pk, team.pk)
    page = " ".join(client.get(BUDGETS).content.decode().split())
    assert "research" in page and "$0.00 of $12.50" in page
    assert 'value="12.5"' in client.get(f"{BUDGETS}/{team.pk}").content.decode()


def test_the_organization_can_be_limited(world: World) -> None:
    answer = world.client(world.consumer).post(f"{BUDGETS}/organization")
    root = BudgetNode.objects.get(kind="organization")
    assert answer.status_code == 302 and answer.headers["Location"] == f"{BUDGETS}/{root.pk}"


@pytest.mark.parametrize(("field", "value"), [("monthly", "-1"), ("daily", "NaN"), ("total", "9" * 12), ("name", "")])
def test_a_bad_limit_comes_back_and_changes_nothing(world: World, field: str, value: str) -> None:
    answer = world.client(world.consumer).post(BUDGETS, EMPTY | {"name": "kept", field: value})
    assert answer.status_code == 400 and not BudgetNode.objects.filter(kind="team").exists()


def test_a_strangers_budget_is_not_found_and_a_developer_may_only_look(world: World) -> None:
    tree.key_node(world.key)
    team = tree.create_team(
        organization=world.key.organization, name="secret", parent_id=None, limits=Limits(total_nano_usd=1)
    )
    assert world.client(world.stranger).get(f"{BUDGETS}/{team.pk}").status_code == 404
    assert world.client(world.stranger).post(f"{BUDGETS}/{team.pk}", EMPTY).status_code == 404
    assert world.client(world.developer).get(BUDGETS).status_code == 200
    assert world.client(world.developer).post(f"{BUDGETS}/{team.pk}", EMPTY).status_code == 403
    team.refresh_from_db()
    assert team.total_limit_nano_usd == 1
