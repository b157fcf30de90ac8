"""Two organizations, two models, two lines of keys, the playground and two days: each filter leaves its own out."""

from __future__ import annotations

import csv
import io
import itertools
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing import selectors
from billing.budgets import selectors as budgets
from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.budgets.runs import selectors as runs
from billing.disputes.selectors import disputes_of
from billing.limited_keys import budget_of
from billing.models import Run
from billing.refunds import refunds_of
from billing.rollups.filtered import PLAYGROUND, UsageFilter, filtered_sums
from billing.usage_lists import usage_csv, usage_page
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts import selectors as accounts
from marketplace.accounts.models import ApiKey, Organization, User
from marketplace.accounts.services import create_api_key, rotate_api_key
from tests.billing.payments import disputed, paid, refund
from tests.billing.support import hold_request, insert_usages, make_organization, open_run, place, settle, split_of

pytestmark = pytest.mark.django_db
TODAY = datetime.now(UTC).date()


@dataclass(frozen=True)
class Call:
    """One prediction as the tests know it; `line` is the first key of its line, PLAYGROUND for none."""

    id: uuid.UUID
    organization: Organization
    model: str
    line: uuid.UUID
    key: uuid.UUID | None
    day: date
    cost: int


def key_of(organization: Organization, name: str, created_by: User | None = None) -> ApiKey:
    return create_api_key(organization=organization, name=name, scopes=["predict"], created_by=created_by)[0]


@pytest.fixture
def calls() -> list[Call]:
    """For each organization, model, day and key a call whose cost is like no other's; one line has a rotated key."""
    creator, costs, made = make_organization(), itertools.count(1), list[Call]()
    for organization in (make_organization(), make_organization()):
        first, second = key_of(organization, "first"), key_of(organization, "second")
        rotated, _ = rotate_api_key(key=first, created_by=None)
        keys = ((first.pk, first.pk), (first.pk, rotated.pk), (second.pk, second.pk), (PLAYGROUND, None))
        for model, (line, key), day in itertools.product(
            ("acme/a", "acme/b"), keys, (TODAY, TODAY - timedelta(days=9))
        ):
            made.append(Call(uuid.uuid4(), organization, model, line, key, day, 2 ** next(costs)))
    insert_usages([_row(call, creator) for call in made])
    return made


def _row(call: Call, creator: Organization) -> dict[str, Any]:
    return {
        "prediction_id": call.id,
        "created_at": datetime.combine(call.day, datetime.min.time(), UTC),
        "organization_id": call.organization.pk,
        "api_key_id": call.key,
        "model_name": call.model,
        "model_id": uuid.uuid5(uuid.NAMESPACE_URL, call.model),
        "creator_organization_id": creator.pk,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": 5,
        "input_micro_usd_per_mtok": 1,
        "output_micro_usd_per_mtok": 1,
        "cached_input_micro_usd_per_mtok": 1,
        "per_prediction_nano_usd": 0,
        "split_id": split_of(creator),
        "cost_nano_usd": call.cost,
        "finish_reason": "stop",
        "receipt": "x",
    }


def test_lists_files_and_sums_of_usage_leave_out_what_the_filter_does(calls: list[Call]) -> None:
    organizations = list(dict.fromkeys(call.organization for call in calls))
    periods = ((TODAY - timedelta(days=30), TODAY + timedelta(days=1)), (TODAY - timedelta(days=3), TODAY))
    periods += ((TODAY, TODAY + timedelta(days=1)), (TODAY - timedelta(days=30), TODAY))
    for organization in organizations:
        lines = list(dict.fromkeys(call.line for call in calls if call.organization == organization))
        foreign = next(call.line for call in calls if call.organization != organization and call.line != PLAYGROUND)
        for model, line, (since, until) in itertools.product(
            (None, "acme/a", "acme/none"), (None, *lines, foreign), periods
        ):
            wanted = UsageFilter(since, until, model, line)
            expected = {
                call.id: call.cost
                for call in calls
                if call.organization == organization
                and since <= call.day < until
                and model in (None, call.model)
                and line in (None, call.line)
            }
            page = usage_page(organization, wanted, after=None, limit=100)
            assert {row.prediction_id: row.cost_nano_usd for row in page.rows} == expected and page.following is None
            rows = list(csv.DictReader(io.StringIO(usage_csv(organization, wanted))))
            assert {uuid.UUID(row["prediction_id"]): int(row["cost_nano_usd"]) for row in rows} == expected
            sums = filtered_sums(organization, wanted)
            for group in (sums.days, sums.models, sums.keys):
                assert sum(one.cost_nano_usd for one in group) == sum(expected.values())
                assert sum(one.predictions for one in group) == len(expected)


def test_a_rotated_key_stands_for_its_line_in_a_list_and_for_nothing_of_another_organization(
    calls: list[Call],
) -> None:
    organization, stranger = dict.fromkeys(call.organization for call in calls)
    rotated = next(call for call in calls if call.organization == organization and call.key not in (None, call.line))
    whole = (TODAY - timedelta(days=30), TODAY + timedelta(days=1))
    own = usage_page(organization, UsageFilter(*whole, None, rotated.line), after=None, limit=100).rows
    assert {row.api_key_id for row in own} == {rotated.key, rotated.line} and len(own) == 8
    assert usage_page(stranger, UsageFilter(*whole, None, rotated.line), after=None, limit=100).rows == []


def test_single_rows_of_money_are_of_the_organization_that_asks(calls: list[Call]) -> None:
    for call in calls:
        for organization in {one.organization for one in calls}:
            found = selectors.usage_row(organization, call.id)
            assert (found is not None) is (organization == call.organization)
    for organization in {one.organization for one in calls}:
        assert {row.prediction_id for row in selectors.usage_rows(organization)} == {
            call.id for call in calls if call.organization == organization
        }


def test_payments_refunds_and_disputes_are_of_the_organization_that_asks(double: StripeDouble) -> None:
    ours, theirs = make_organization(), make_organization()
    for organization in (ours, theirs):
        top_up = paid(double, organization)
        sent = refund(organization, top_up, 100)
        dispute = disputed(double, paid(double, organization), 500)
        assert refunds_of(organization) == [sent] and disputes_of(organization) == [dispute]
        assert {one.organization_id for one in selectors.top_ups(organization)} == {organization.pk}
        assert len(selectors.top_ups(organization)) == 2
    assert selectors.top_up(theirs, selectors.top_ups(theirs)[0].pk) is not None
    assert selectors.top_up(ours, selectors.top_ups(theirs)[0].pk) is None
    assert {line.reference for line in selectors.statement(ours)}.isdisjoint(
        line.reference for line in selectors.statement(theirs)
    )


def test_budgets_keys_and_runs_are_of_the_organization_that_asks() -> None:
    creator, person = make_organization(), User.objects.create_user(email="ada@example.com", password="x")
    found: list[tuple[Organization, ApiKey, Run]] = []
    for _ in range(2):
        organization = make_organization(10**9)
        key, other = key_of(organization, "one", person), key_of(organization, "two")
        team = tree.create_team(organization=organization, name="team", parent_id=None, limits=Limits())
        for one in (key, other):
            node = tree.set_limits(tree.key_node(one), Limits(daily_nano_usd=5_000_000))
            tree.end_user_node(key=node, end_user="ada")
        run = open_run(key)
        request = place(hold_request(organization, creator, api_key_id=key.pk, run_id=run.pk))
        settle(request.prediction_id)
        place(hold_request(organization, creator, api_key_id=key.pk))
        found.append((organization, key, run))
        assert {line.node.name for line in budgets.tree_of(organization)} == {organization.slug, "team", "one", "two"}
        assert budgets.node_of(organization, team.pk) == team and budgets.node_of(organization, run.node_id) is None
        assert set(budgets.budgets_of_keys(organization)) == {key.pk, other.pk}
        assert {node.api_key_id for node in selectors.key_budgets(organization)} == {key.pk, other.pk}
        assert [one.end_user for one in budgets.end_users_of(tree.key_node(key))] == ["ada"]
        assert budget_of(key) == budgets.budget_of_key(key) == tree.key_node(key)
        (call,) = runs.with_usage(list(runs.calls_of(run)))
        assert call.hold.pk == request.prediction_id and call.usage is not None and call.state == "charged"
        assert list(accounts.managed_keys_of(organization=organization, created_by=person)) == [key]
        assert set(accounts.api_keys_of(organization=organization)) == {key, other}
        ApiKey.objects.filter(pk=other.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
        assert list(accounts.working_keys_of(organization=organization)) == [key]
    (ours, _, run), (theirs, foreign_key, foreign_run) = found
    assert runs.run_of(ours, run.pk) == run and runs.run_of(ours, foreign_run.pk) is None
    assert list(runs.runs_of(ours)) == [run]
    assert accounts.api_key_of(organization=ours, key_id=foreign_key.pk) is None
    assert budgets.node_of(ours, tree.organization_node(theirs).pk) is None
