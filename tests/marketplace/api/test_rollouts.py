"""Rollouts, the default version and announced ends over the API."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from marketplace.accounts.models import AuditEntry
from marketplace.catalog.models import Version
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_model, make_organization, make_version

pytestmark = pytest.mark.django_db
PAGE = (Path(__file__).parents[3] / "docs" / "versions.md").read_text()


class Client:
    """The part of `httpx.Client` that the page uses."""

    def __init__(self, api: Api) -> None:
        self.get = api.get
        self._api = api

    def post(self, path: str, json: Any = None) -> Any:
        return self._raised(self._api.post(path, json))

    def delete(self, path: str) -> Any:
        return self._raised(self._api.call("DELETE", path))

    @staticmethod
    def _raised(answer: Any) -> Any:
        assert answer.status_code == 200, answer.content
        return answer


def test_the_examples_of_the_page_run() -> None:
    first = make_version(make_model(make_organization("acme")))
    second = make_version(first.model, Version.State.VERIFIED)
    by_number = {one.number: {"id": str(one.pk)} for one in (first, second)}
    client = Client(Api.of(first.model.organization, "publish"))
    names: dict[str, Any] = {"api": client, "model": "acme/triage", "by_number": by_number}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "docs/versions.md", "exec"), names)
    assert names["served"]["rollout"]["percent"] == 10 and names["version"]["replacement"] == 1


def test_a_version_is_rolled_out_made_the_default_and_rolled_back() -> None:
    organization = make_organization("acme")
    first = make_version(make_model(organization))
    second = make_version(first.model, Version.State.VERIFIED)
    api = Api.of(organization, "publish")
    shown = api.post(f"versions/{second.pk}/rollout", {"percent": 10}).json()
    assert shown["default_version"] == 1
    assert (shown["rollout"]["version"], shown["rollout"]["percent"], shown["rollout"]["outcome"]) == (2, 10, "")
    assert [side["version"] for side in shown["comparison"]] == [1, 2]
    assert shown["comparison"][0]["error_percent"] is None
    assert api.get("models/acme/triage/rollout").json() == shown
    third = make_version(first.model, Version.State.VERIFIED)
    assert error_of(api.post(f"versions/{third.pk}/rollout", {"percent": 10}), 409)["code"] == "rollout_open"
    assert error_of(api.post(f"versions/{second.pk}/rollout", {"percent": 101}), 400)["field"] == "percent"
    shown = api.post(f"versions/{second.pk}/rollout", {"percent": 100}).json()
    assert (shown["default_version"], shown["rollout"], shown["comparison"]) == (2, None, [])
    assert shown["earlier"][0]["outcome"] == "finished"
    assert api.get("models/acme/triage").json()["newest_version"] == 2
    assert api.post(f"versions/{first.pk}/make-default").json()["default_version"] == 1
    assert Api().get("models/acme/triage").json()["newest_version"] == 1, "everybody sees the default"
    entries = AuditEntry.objects.filter(organization=organization, act__in=("version.rollout", "version.default"))
    entries = entries.order_by("id")
    assert [entry.act for entry in entries] == ["version.rollout", "version.default", "version.default"]
    assert all(entry.api_key_id is not None for entry in entries) and entries[0].data == {"percent": 10}


def test_an_end_is_announced_and_taken_back_and_everybody_reads_of_it() -> None:
    organization = make_organization("acme")
    first = make_version(make_model(organization))
    second = make_version(first.model)
    Version.objects.update(published_at=timezone.now())
    api = Api.of(organization, "publish")
    soon, later = (f"{timezone.now() + timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}" for days in (13, 20))
    assert error_of(api.post(f"versions/{first.pk}/deprecate", {"ends_at": soon}), 400)["field"] == "ends_at"
    body = {"ends_at": later, "replacement": 2}
    assert error_of(api.post(f"versions/{first.pk}/deprecate", {**body, "replacement": 9}), 404)
    assert error_of(api.post(f"versions/{second.pk}/deprecate", body), 400)["field"] == "replacement"
    assert api.post(f"versions/{first.pk}/deprecate", body).json()["ends_at"] == later
    shown = Api().get("models/acme/triage/versions").json()["results"][1]
    assert (shown["number"], shown["ends_at"], shown["replacement"]) == (1, later, 2)
    assert api.call("DELETE", f"versions/{first.pk}/deprecate").json()["ends_at"] is None
    assert error_of(api.call("DELETE", f"versions/{first.pk}/deprecate"), 409)["code"] == "not_deprecated"


def test_a_changelog_is_the_creators_until_the_version_is_published_and_strangers_read_retired_ones() -> None:
    organization = make_organization("acme")
    version = make_version(make_model(organization), Version.State.VERIFIED)
    api = Api.of(organization, "publish")
    changed = api.call("PATCH", f"versions/{version.pk}", {"changelog": "Knows three more labels."}).json()
    assert changed["changelog"] == "Knows three more labels."
    assert api.post(f"versions/{version.pk}/publish").status_code == 200
    assert error_of(api.call("PATCH", f"versions/{version.pk}", {"changelog": "x"}), 409)["code"] == "published"
    make_version(version.model)
    Version.objects.filter(number=2).update(published_at=timezone.now())
    assert api.post(f"versions/{version.pk}/retire").status_code == 200
    make_version(version.model, Version.State.VERIFIED)
    shown = Api().get("models/acme/triage/versions").json()["results"]
    assert [(one["number"], one["state"]) for one in shown] == [(2, "published"), (1, "retired")]
    assert shown[1]["changelog"] == "Knows three more labels."
