"""Another organization's things are out of reach: every operation answers 404 and changes nothing."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, datetime

import pytest
from django.core.cache import cache
from django.db import transaction
from django.urls import resolve

from marketplace.accounts.models import ApiKey, Organization
from marketplace.accounts.second_factor import set_authenticator
from marketplace.catalog.models import Model, Version
from marketplace.vault.models import SigningKey
from tests.database import written_rows
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.api.operations import operations
from tests.marketplace.api.scopes import SCOPES, names
from tests.marketplace.api.tenant_operations import OPERATIONS, OWN
from tests.marketplace.api.victim import Victim, fill, make_victim
from tests.marketplace.catalog.factories import make_model, make_organization

pytestmark = pytest.mark.django_db
USED = datetime(2999, 1, 1, tzinfo=UTC)  # so that no use of a key is noted


@pytest.fixture
def victim() -> Victim:
    return make_victim()


@pytest.fixture
def attacker() -> Organization:
    return make_organization("attacker")


def test_another_organizations_things_are_not_found_and_nothing_is_written(victim, attacker, settings) -> None:
    """One world: each operation is asked for behind a savepoint, and must write no row of any table and no file."""
    api = Api.of(attacker)
    ApiKey.objects.filter(organization=attacker).update(last_used_at=USED)
    unknown, blobs = _unknown(victim), settings.ENV.blob_dir
    for method, path, template in OPERATIONS:
        case = f"{method} {path}"
        body = template and {name: fill(v, victim) if isinstance(v, str) else v for name, v in template.items()}
        cache.clear()  # no throttle is used up
        before = written_rows()
        with transaction.atomic():
            if method == "PUT" and body is None:
                response = api.put_bytes(fill(path, victim), b"x", 0)
            else:
                response = api.call(method, fill(path, victim), body)
            assert response.status_code == 404, case
            if method != "HEAD":
                assert error_of(response, 404)["code"] == "not_found", case
                other = api.call(method, fill(path.replace("{org}", "nobody"), unknown), body)
                if method != "PUT":
                    assert other.json()["error"]["message"] == response.json()["error"]["message"], (
                        f"{case}: told apart"
                    )
            transaction.set_rollback(True)
        assert written_rows() == before, case
    assert not [path for path in blobs.rglob("*") if path.is_file()]


def test_what_the_owner_may_do_is_counted_as_written(victim) -> None:
    """Otherwise the test above could not fail."""
    ApiKey.objects.update(last_used_at=USED)
    before = written_rows()
    assert Api.of(victim.organization).call("DELETE", f"keys/{victim.key.id}").status_code == 204
    after = written_rows()
    assert after[ApiKey._meta.db_table] > before.get(ApiKey._meta.db_table, 0)


def _unknown(victim: Victim) -> Victim:
    class Unknown:
        id = uuid.uuid4()
        slug = "nothing"
        signing_key_id = uuid.uuid4()
        eval_set_id = node_id = uuid.uuid4()

    class UnknownDelivery:
        id = 2**62

    unknown = Victim(victim.organization, *[Unknown] * (len(dataclasses.fields(Victim)) - 1))
    unknown.delivery = UnknownDelivery
    return unknown


def test_every_operation_is_asked_for_or_answers_for_the_callers_own_or_is_public_or_the_staffs(victim) -> None:
    asked = {
        (method, resolve(f"/api/v1/{fill(path, victim).partition('?')[0]}").url_name) for method, path, _ in OPERATIONS
    }
    known = {(one.method, one.name) for one in operations()}
    own, public, staff = (set(names(table)) for table in (OWN, SCOPES["public"], SCOPES["staff"]))
    assert asked | own | public | staff == known
    assert not asked & own and not asked & public and not asked & staff and not own & public


def test_drafts_and_private_models_are_not_found_by_others(victim, attacker) -> None:
    api, name = Api.of(attacker), victim.model.full_name
    assert api.get(f"models/{name}").status_code == 200
    assert [v["number"] for v in api.get(f"models/{name}/versions").json()["results"]] == [1]
    Model.objects.update(visibility="private")
    for path in (f"models/{name}", f"models/{name}/versions"):
        for stranger in (api, Api()):
            error_of(stranger.get(path), 404)
    assert api.get("models").json()["results"] == []
    assert Api.of(victim.organization).get(f"models/{name}").status_code == 200

    Model.objects.update(visibility="public")
    Version.objects.filter(number=1).update(state="verified")
    for path in (f"models/{name}", f"models/{name}/versions"):
        error_of(api.get(path), 404)
    own = Api.of(victim.organization).get(f"models/{name}/versions").json()["results"]
    assert [v["number"] for v in own] == [9, 1]


def test_an_unlisted_model_is_found_by_name_only(victim, attacker) -> None:
    Model.objects.update(visibility="unlisted")
    api = Api.of(attacker)
    assert api.get("models").json()["results"] == []
    assert api.get(f"models/{victim.model.full_name}").status_code == 200


def test_strangers_do_not_see_reports_of_published_versions(victim, attacker) -> None:
    Version.objects.filter(number=1).update(report={"targets": ["q_proj"]})
    (version,) = Api.of(attacker).get(f"models/{victim.model.full_name}/versions").json()["results"]
    assert "report" not in version and "creator_id" not in version


def test_lists_hold_only_the_callers_own(victim, attacker) -> None:
    api = Api.of(attacker)
    assert [key["name"] for key in api.get("keys").json()["results"]] == ["test"]
    assert len(api.get("keys").json()["results"]) == ApiKey.objects.filter(organization=attacker).count()
    assert api.get("topups").json()["results"] == []
    assert api.get("cards").json()["results"] == []
    assert api.get("disputes").json()["results"] == []
    error_of(api.get("auto-top-up"), 404)
    assert api.get("usage").json()["results"] == []
    assert api.get("usage/summary").json()["results"] == []
    assert api.get("models?mine=true").json()["results"] == []
    assert api.get("earnings").json()["total_nano_usd"] == 0
    assert api.get("wallet").json()["available_nano_usd"] == 0
    assert api.get("statements").json()["accounts"] == []
    assert api.get("statements/lines").json()["results"] == []
    assert api.get("custody").json()["creator_id"] == str(attacker.id)


def test_a_version_cannot_be_started_with_another_organizations_signing_key(victim, attacker) -> None:
    make_model(attacker, slug="own")
    body = {"signing_key_id": str(victim.uploading.signing_key_id), "package_size": 10}
    error = error_of(Api.of(attacker).post("models/attacker/own/versions", body), 400)
    assert error["code"] == "unknown_signing_key"
    assert not Version.objects.filter(model__organization=attacker).exists()


def test_another_organizations_public_key_cannot_be_registered(victim, attacker) -> None:
    from protocol.encoding import encode_base64url
    from sealed_weights import CreatorIdentity

    public = encode_base64url(CreatorIdentity.generate().public_bytes())
    registered = Api.of(victim.organization).post("organizations/victim/signing-keys", {"public_key": public})
    assert registered.status_code == 201
    error = error_of(Api.of(attacker).post("organizations/attacker/signing-keys", {"public_key": public}), 409)
    assert error["code"] == "key_taken"
    assert SigningKey.objects.filter(organization=attacker).count() == 0


def test_a_key_cannot_choose_another_organization(victim, attacker) -> None:
    api = Api.of(attacker)
    error_of(api.get("wallet", **{"X-Organization": "victim"}), 404)
    assert api.get("wallet", **{"X-Organization": "attacker"}).status_code == 200


@pytest.mark.parametrize("path", ["platform/statements", "platform/summary"])
def test_operators_only(victim, attacker, path) -> None:
    for api in (Api.of(attacker), Api.of(victim.organization)):
        assert error_of(api.get(path), 403)["code"] == "staff_only"
    error_of(Api().get(path), 401)
    # A staff member's key of an ordinary organization is shared with its members: it does not carry staff rights.
    owner = attacker.memberships.get().user
    owner.is_staff = True
    owner.save()
    set_authenticator(user=owner, secret="A" * 32)
    assert error_of(Api.of(attacker).get(path), 403)["code"] == "staff_only"
    platform = make_organization("intarsia", owner=owner)
    assert Api.of(platform).get(path).status_code == 200
