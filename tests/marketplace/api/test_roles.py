"""Each operation × each caller, by enumeration of the URL map: what their scopes say holds, and for readers a list."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any
from uuid import UUID

import pytest
from django.test import Client
from django.urls import reverse

from marketplace.accounts import policies
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import Membership, Organization, User
from marketplace.api import urls
from marketplace.api.views.base import ControlView
from tests.marketplace.catalog.factories import add_member, make_organization, make_user

pytestmark = pytest.mark.django_db

# All that the scope `read`, and so a viewer, opens. Everything else changes something, or shows a secret, money or a
# person.
READABLE = {
    "access-request",  # these three: about the caller's own organization
    "admission",
    "licence-acceptance",
    "alarms",
    "budget",
    "budget-alerts",
    "budgets",
    "custody",
    "custody-export",
    "eval-run",
    "eval-runs",
    "eval-set",
    "eval-sets",
    "holders",
    "in-use",
    "members",  # sessions; a key needs `account`
    "model-guard",
    "model-guards",
    "organization",
    "promise-refunds",
    "receipt",
    "reviews",
    "run",
    "run-calls",
    "runs",
    "signing-keys",
    "transfer",
    "usage",
    "usage-csv",
    "usage-summary",
    "version",
}
# A viewer may do this: it is about themselves alone.
OWN_ACTS = {("POST", "accept-transfer"), ("DELETE", "transfer"), ("POST", "leave")}
ARGUMENTS = {
    "org": "acme",
    "slug": "triage",
    "day": date(2026, 1, 31),
    "dispute_id": "dp_1",
    "incident_id": 1,
    "session_id": 1,
    "customer_id": 1,
    "delivery_id": 1,
    "name": "r1",
    "kind": "model.drift",
}
ALLOWED = 418  # of the sentinel below


def operations() -> Iterator[tuple[str, str, str, type[ControlView]]]:
    """Every operation: method, name of the route, address, view."""
    for pattern in urls.urlpatterns:
        if not pattern.name:
            continue
        view = pattern.callback.view_class  # type: ignore[attr-defined]
        names = pattern.pattern.converters
        path = reverse(f"api:{pattern.name}", kwargs={name: ARGUMENTS.get(name, UUID(int=1)) for name in names})
        for method in ("get", "post", "put", "patch", "delete"):
            if hasattr(view, method):
                yield method.upper(), pattern.name, path, view


@pytest.fixture
def _only_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop each request after its permissions: nothing is done, so all callers can ask in one world."""

    def allowed(*_: object) -> None:
        raise Refusal("allowed", code="allowed", status=ALLOWED)

    monkeypatch.setattr(ControlView, "check_throttles", allowed)


class Asker:
    """One caller of the API, signed in or not."""

    def __init__(self, user: User | None, organization: str = "") -> None:
        self.client = Client()
        self.headers = {"X-Organization": organization} if organization else {}
        if user is not None:
            self.client.force_login(user)

    def asks(self, method: str, path: str) -> tuple[int, str]:
        """Status and code of one request."""
        response: Any = self.client.generic(method, path, headers=self.headers)
        return response.status_code, response.json()["error"]["code"]


@pytest.fixture
def acme() -> Organization:
    return make_organization("acme")


@pytest.mark.usefixtures("_only_asked")
@pytest.mark.parametrize("role", Membership.Role.values)
def test_each_operation_opens_for_the_roles_that_carry_its_scope(acme: Organization, role: str) -> None:
    member, held = Asker(add_member(acme, role)), policies.scopes_of_role(role)
    for method, name, path, view in operations():
        status, code = member.asks(method, path)
        needed = view.scopes.get(method, ())
        if view.staff_only:
            assert (status, code) == (403, "staff_only"), (method, name)
        elif method in view.public or not needed or held & set(needed):
            assert status == ALLOWED, (method, name, code)
        else:
            assert (status, code) == (403, "scope_missing"), (method, name)
        if role == "viewer" and needed and status == ALLOWED:
            assert name in READABLE if method == "GET" else (method, name) in OWN_ACTS, (method, name)


@pytest.mark.usefixtures("_only_asked")
def test_strangers_and_outsiders_reach_nothing_that_needs_a_scope(acme: Organization) -> None:
    outsider = make_user()
    make_organization("elsewhere", outsider)
    stranger, foreigner = Asker(None), Asker(outsider, "acme")
    for method, name, path, view in operations():
        if method in view.public:
            continue
        assert stranger.asks(method, path)[0] == 401, (method, name)
        assert foreigner.asks(method, path)[0] == 404, (method, name)


def test_the_list_of_what_readers_see_is_what_the_operations_say() -> None:
    opened = {
        name for method, name, _, view in operations() if method == "GET" and "read" in view.scopes.get("GET", ())
    }
    assert opened == READABLE
