"""Each operation × each caller, by enumeration of the URL map: what scopes.py says holds, and for readers a list."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from marketplace.accounts import policies
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import ApiKey, Membership, Organization, User
from marketplace.api.views.base import ControlView
from tests.marketplace.api.operations import operations
from tests.marketplace.api.scopes import SCOPES, WITHOUT_SCOPES, names, needed
from tests.marketplace.catalog.factories import add_member, make_key, make_organization, make_user

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
ALLOWED = 418  # of the sentinel below
NEEDED = needed()


@pytest.fixture
def _only_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop each request after its permissions: nothing is done, so all callers can ask in one world."""

    def allowed(*_: object) -> None:
        raise Refusal("allowed", code="allowed", status=ALLOWED)

    monkeypatch.setattr(ControlView, "check_throttles", allowed)


class Asker:
    """One caller of the API: signed in, with a key, or neither."""

    def __init__(self, user: User | None = None, organization: str = "", key: str = "") -> None:
        self.client = Client()
        self.headers = {"X-Organization": organization} if organization else {}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        if user is not None:
            self.client.force_login(user)

    def asks(self, method: str, path: str) -> Any:
        """Answer one request."""
        return self.client.generic(method, path, headers=self.headers)

    def asks_all(self, held: frozenset[str]) -> set[tuple[str, str]]:
        """Ask for every operation; return those that opened. Which do is what the table says of `held`."""
        opened = set()
        for one in operations():
            words = NEEDED[one.method, one.name]
            response = self.asks(one.method, one.path())
            code = None if one.method == "HEAD" else response.json()["error"]["code"]
            if words == {"staff"}:
                assert (response.status_code, code) == (403, "staff_only"), one
            elif words <= WITHOUT_SCOPES or held & words:
                assert response.status_code == ALLOWED, (one, code)
                opened.add((one.method, one.name))
            else:
                assert response.status_code == 403 and code in ("scope_missing", None), (one, code)
        return opened


@pytest.fixture
def acme() -> Organization:
    return make_organization("acme")


@pytest.mark.usefixtures("_only_asked")
@pytest.mark.parametrize("role", Membership.Role.values)
def test_each_operation_opens_for_the_roles_that_carry_its_scope(acme: Organization, role: str) -> None:
    opened = Asker(add_member(acme, role)).asks_all(policies.scopes_of_role(role))
    if role == "viewer":
        needing = {operation for operation in opened if not NEEDED[operation] <= WITHOUT_SCOPES}
        assert {name for method, name in needing if method == "GET"} == READABLE
        assert {one for one in needing if one[0] != "GET"} == OWN_ACTS


@pytest.mark.usefixtures("_only_asked")
def test_each_operation_opens_for_a_key_with_one_of_its_scopes_and_for_no_other_key(acme: Organization) -> None:
    """Each operation asked for with one scope of its line after the other, then with all scopes but those."""
    all_scopes = frozenset(ApiKey.Scope.values)
    askers: dict[frozenset[str], Asker] = {}

    def with_(*scopes: str) -> Asker:
        held = frozenset(scopes)
        return askers[held] if held in askers else askers.setdefault(held, Asker(key=make_key(acme, *held)[1]))

    for one in operations():
        words = NEEDED[one.method, one.name]
        for scope in all_scopes if words == {"any"} else words & all_scopes:
            assert with_(scope).asks(one.method, one.path()).status_code == ALLOWED, (one, scope)
        if words == {"staff"}:
            assert with_(*all_scopes).asks(one.method, one.path()).json()["error"]["code"] == "staff_only", one
        elif not words <= WITHOUT_SCOPES and (others := all_scopes - words):
            refused = with_(*others).asks(one.method, one.path())
            assert refused.status_code == 403, (one, others)
            assert one.method == "HEAD" or refused.json()["error"]["code"] == "scope_missing", (one, others)


@pytest.mark.usefixtures("_only_asked")
@pytest.mark.parametrize("who", ["stranger", "outsider"])
def test_strangers_and_outsiders_reach_nothing_that_is_not_public(acme: Organization, who: str) -> None:
    """An outsider is signed in, and says that they act for an organization of others."""
    outsider = make_user()
    make_organization("elsewhere", outsider)
    asker = Asker() if who == "stranger" else Asker(outsider, "acme")
    public = set(names(SCOPES["public"]))
    for one in operations():
        if (one.method, one.name) in public:
            continue
        refused = asker.asks(one.method, one.path())
        assert refused.status_code == (401 if who == "stranger" else 404), one
        assert who == "outsider" or refused["WWW-Authenticate"].startswith("Bearer"), one
