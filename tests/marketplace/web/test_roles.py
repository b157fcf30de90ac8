"""Each page × each caller, by enumeration of the URL map: what page_roles.py says holds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from marketplace.accounts.models import Membership
from marketplace.accounts.policies import scopes_of_role
from marketplace.web import urls
from tests.marketplace.catalog.factories import add_member
from tests.marketplace.teams.fresh import freshen
from tests.marketplace.web.conftest import World
from tests.marketplace.web.page_roles import CHANGE, READ

ARGUMENTS: dict[str, Any] = {
    "org": "ledgerline",
    "slug": "transactions",
    "name": "no.whl",
    "kind": "csv",
    "digest": "0" * 64,
    "token": "made-up",
    "month": "2026-01",
    "extension": "csv",
    "action": "approve",
    "answer": "trust",
    "number": "1",
    "customer_id": "1",
    "session_id": "1",
    "delivery_id": "1",
    "incident_id": "1",
    "dispute_id": "dp_1",
}
OF_ROUTE: dict[str, dict[str, str]] = {
    "change_version": {"action": "publish"},
    "change_replica": {"name": "r1", "action": "drain"},
    "change_standing": {"action": "suspend"},
    "docs_page": {"name": "start-consumer"},
    "docs_reference": {"tag": "predictions"},
    "version_act": {"action": "default"},
    "leave": {"action": "give"},
    "answer_access_request": {"answer": "grant"},
}
SCOPES = {name: {name} for name in ("read", "predict", "publish", "account")}
SCOPES["keys"] = {"predict", "publish", "account"}


def pages(table: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each page of the table: who, name of the route, address."""
    patterns = {pattern.name: pattern for pattern in urls.urlpatterns}
    for who, names in table.items():
        for name in names.split():
            arguments = ARGUMENTS | OF_ROUTE.get(name, {})
            needed = patterns[name].pattern.regex.groupindex
            values = {key: arguments.get(key, str(uuid.UUID(int=1))) for key in needed}
            yield who, name, reverse(f"web:{name}", kwargs=values)


def test_every_page_is_in_the_table() -> None:
    listed = {name for table in (READ, CHANGE) for names in table.values() for name in names.split()}
    assert listed == {pattern.name for pattern in urls.urlpatterns}


@pytest.mark.parametrize("role", Membership.Role.values)
def test_a_role_reads_and_changes_what_its_scopes_say(world: World, role: str) -> None:
    client = freshen(world.client(add_member(world.seller, role)))
    held = scopes_of_role(role)
    for table, method in ((READ, "GET"), (CHANGE, "POST")):
        for who, name, path in pages(table):
            if who in SCOPES and held.isdisjoint(SCOPES[who]):
                assert_refused(client.generic(method, path), name)
            elif who == "staff":
                assert client.generic(method, path).status_code == 404, name
            elif method == "GET" and who in SCOPES and role in ("viewer", "billing", "developer"):
                assert client.get(path).status_code in (200, 302, 404), name  # 302, 404: a thing that is not there


def test_strangers_are_sent_to_sign_in_and_outsiders_find_nothing(world: World) -> None:
    stranger, outsider = Client(), freshen(world.client(world.stranger))
    for table, method in ((READ, "GET"), (CHANGE, "POST")):
        for who, name, path in pages(table):
            if who in ("all", "elsewhere"):
                continue
            response = stranger.generic(method, path)
            assert response.status_code == 302 and "/accounts/login/" in response["Location"], name
            if "transactions" in path and who != "member":  # the creator's own pages, by the model's name
                assert outsider.generic(method, path).status_code in (302, 400, 404), name
    world.model.refresh_from_db()
    assert world.model.prices.count() == 1


def assert_refused(response: Any, name: str) -> None:
    assert response.status_code == 403, (name, response.status_code)
    assert "Not for your role" in response.content.decode(), name
