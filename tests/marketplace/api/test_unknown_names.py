"""No operation ignores a name that it does not know: a limit under a wrong name would limit nothing."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.test import Client

from marketplace.accounts.models import ApiKey
from marketplace.api import urls
from marketplace.api.parsers import BoundedJSONParser
from marketplace.api.views.base import ControlView
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_key, make_organization, make_user

pytestmark = pytest.mark.django_db

SAMPLES = {"uuid": str(uuid.UUID(int=1)), "int": "1", "day": "2026-01-01", "run": f"run_{uuid.UUID(int=1).hex}"}
WRONG = "modelss_of_nobody"


def operations() -> list[tuple[str, str, bool]]:
    """Return (method, path, whether it reads JSON) of every described operation of the URL table, with invented ids."""
    found = []
    for pattern in urls.urlpatterns:
        view = getattr(pattern.callback, "view_class", None)
        if view is None or not issubclass(view, ControlView):
            continue
        path = re.sub(
            r"<(\w+):\w+>",
            lambda match: SAMPLES.get(match[1], "dp_1" if match[1] == "dispute" else "acme"),
            str(pattern.pattern),
        )
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            if "schema" in getattr(getattr(view, method.lower(), None), "kwargs", {}):
                found.append((method, path, BoundedJSONParser in view.parser_classes and method != "GET"))
    return found


def test_every_operation_refuses_a_name_that_it_does_not_know() -> None:
    person = make_user("staff@example.com", is_staff=True)
    make_organization("intarsia", person)
    client = Client(raise_request_exception=False)
    client.force_login(person)
    session = client.session
    session["account_authentication_methods"] = [{"method": "password", "at": 2**33}]
    session.save()
    api, refused = Api(), 0
    api.client = client
    for method, path, reads_json in operations():
        error = error_of(api.call(method, f"{path}?{WRONG}=1"), 400)
        assert (error["code"], error["field"]) == ("unknown_field", WRONG), (method, path)
        if reads_json:
            error = error_of(api.call(method, path, {WRONG: 1}, **{"Idempotency-Key": "k"}), 400)
            assert (error["code"], error["field"]) == ("unknown_field", WRONG), (method, path)
        refused += 1
    assert refused > 150


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "meant"),
    [
        (
            "PUT",
            "keys/{key}/budget",
            {"total_limit_nano_usd": 1_600_000},
            "total_limit_nano_usd",
            "limits.total_nano_usd",
        ),
        ("PUT", "keys/{key}/budget", {"limits": {"totl_nano_usd": 1}}, "limits.totl_nano_usd", "limits.total_nano_usd"),
        ("POST", "keys", {"name": "x", "scopes": ["predict"], "modelss": ["a/b"]}, "modelss", "models"),
        (
            "POST",
            "keys",
            {"name": "x", "scopes": ["predict"], "expires_att": "2030-01-01T00:00:00Z"},
            "expires_att",
            "expires_at",
        ),
        ("PATCH", "keys/{key}", {"network": ["10.0.0.0/8"]}, "network", "networks"),
        ("GET", "usage?keys=1", None, "keys", "key"),
    ],
)
def test_the_refusal_names_the_field_and_the_one_that_was_meant(
    method: str, path: str, body: Any, field: str, meant: str
) -> None:
    organization = make_organization("acme")
    key, text = make_key(organization)
    error = error_of(Api(text).call(method, path.format(key=key.pk), body), 400)
    assert (error["code"], error["field"]) == ("unknown_field", field)
    assert error["message"].endswith(f"did you mean {meant}?")
    assert ApiKey.objects.count() == 1
