"""Listings, prices, evaluations, keys, money and the schema, as their owners use them."""

from __future__ import annotations

import itertools
import uuid
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from billing.services import credit_promotion
from marketplace.catalog.models import Model, Version
from marketplace.vault import services as vault_services
from protocol.encoding import encode_base64url
from sealed_weights import CreatorIdentity
from tests.billing.rollups.test_roll_up import insert_past
from tests.billing.support import insert_usage, split_of
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import (
    make_base,
    make_key,
    make_model,
    make_organization,
    make_version,
)

pytestmark = pytest.mark.django_db


def test_a_listing_is_created_changed_and_priced() -> None:
    make_base()
    api = Api.of(make_organization("acme"))
    body = {
        "slug": "triage",
        "title": "Triage",
        "summary": "Sorts tickets.",
        "card_markdown": "# Triage\n\n  indented\n",
        "industry": "telecom",
        "tags": ["Support", "support", "json"],
        "visibility": "public",
        "example_messages": [{"role": "user", "content": " no signal "}],
    }
    created = api.post("models", body)
    assert created.status_code == 201
    model = created.json()
    assert model["name"] == "acme/triage" and model["tags"] == ["support", "json"]
    assert model["card_markdown"] == body["card_markdown"]
    assert model["example_messages"] == body["example_messages"]
    assert model["price"] is None and model["newest_version"] is None
    assert error_of(api.post("models", body), 409)["code"] == "slug_taken"

    renamed = api.call("PATCH", "models/acme/triage", {"summary": "", "slug": "other"})
    assert error_of(renamed, 400)["field"] == "slug", "a listing keeps its name, and who sends one hears of it"
    changed = api.call("PATCH", "models/acme/triage", {"summary": "", "visibility": "private"}).json()
    assert (changed["summary"], changed["visibility"], changed["slug"]) == ("", "private", "triage")
    assert changed["title"] == "Triage"

    price = {"input_micro_usd_per_mtok": 100, "cached_input_micro_usd_per_mtok": 20, "output_micro_usd_per_mtok": 400}
    assert api.post("models/acme/triage/prices", price).status_code == 201
    assert api.post("models/acme/triage/prices", {**price, "input_micro_usd_per_mtok": 200}).status_code == 201
    assert api.get("models/acme/triage").json()["price"]["input_micro_usd_per_mtok"] == 200
    assert Model.objects.get().prices.count() == 2


def test_the_base_may_be_left_out_while_there_is_one() -> None:
    api = Api.of(make_organization("acme"))
    assert error_of(api.post("models", {"slug": "a", "title": "A"}), 400)["code"] == "unknown_base"
    make_base()
    assert api.post("models", {"slug": "a", "title": "A"}).status_code == 201
    other = make_base("cd" * 32, name="other")
    assert error_of(api.post("models", {"slug": "b", "title": "B"}), 400)["code"] == "ambiguous_base"
    for number, base in enumerate(("other", other.fingerprint)):
        created = api.post("models", {"slug": f"c{number}", "title": "C", "base": base}).json()
        assert created["base"]["fingerprint"] == other.fingerprint
    assert [row["name"] for row in Api().get("bases").json()["results"]] == ["other", "tiny"]


def test_the_catalogue_is_public_and_paged_by_cursor() -> None:
    organization = make_organization("acme")
    for number in range(5):
        make_version(make_model(organization, slug=f"m{number}"))
    make_model(organization, slug="draft")
    page = Api().get("models?limit=2").json()
    names = [row["slug"] for row in page["results"]]
    while page["next"]:
        page = Client().get(page["next"]).json()
        names += [row["slug"] for row in page["results"]]
    assert names == ["m4", "m3", "m2", "m1", "m0"]
    assert len(Api.of(organization).get("models?mine=true").json()["results"]) == 6
    error_of(Api().get("models?mine=true"), 401)


def test_a_page_of_models_costs_the_same_queries_whatever_its_length(django_assert_max_num_queries) -> None:
    organization = make_organization("acme")
    for number in range(8):
        make_version(make_model(organization, slug=f"m{number}"))
    with django_assert_max_num_queries(5):
        assert len(Api().get("models").json()["results"]) == 8


def test_a_signing_key_is_registered_once() -> None:
    api = Api.of(make_organization("acme"))
    public = encode_base64url(CreatorIdentity.generate().public_bytes())
    first = api.post("organizations/acme/signing-keys", {"public_key": public}).json()
    second = api.post("organizations/acme/signing-keys", {"public_key": public}).json()
    assert first == second and first["public_key"] == public
    assert len(api.get("organizations/acme/signing-keys").json()["results"]) == 1


def test_a_key_is_created_limited_rotated_and_revoked() -> None:
    api = Api.of(make_organization("acme"))
    body = {"name": "app", "scopes": ["predict"], "monthly_limit_nano_usd": 5_000_000_000}
    created = api.post("keys", body).json()
    assert created["budget"]["monthly_limit_nano_usd"] == 5_000_000_000
    rotated = api.post(f"keys/{created['id']}/rotate", {}).json()
    assert rotated["key"] != created["key"] and rotated["scopes"] == ["predict"]
    assert rotated["budget"]["monthly_limit_nano_usd"] == 5_000_000_000, "rotation is no way out of a budget"
    assert Api(created["key"]).get("me").status_code == 200, "the old key works for a while"
    old = next(key for key in api.get("keys").json()["results"] if key["id"] == created["id"])
    assert old["expires_at"] is not None
    assert api.call("DELETE", f"keys/{rotated['id']}").status_code == 204
    error_of(Api(rotated["key"]).get("me"), 401)
    error_of(api.post(f"keys/{rotated['id']}/rotate", {}), 409)


def test_wallet_usage_and_earnings_show_what_was_spent_and_earned() -> None:
    buyer, seller = make_organization("buyer"), make_organization("seller")
    credit_promotion(organization=buyer, amount_nano_usd=7_000, reference="welcome")
    assert Api.of(buyer).get("wallet").json() == {
        "posted_nano_usd": 7_000,
        "held_nano_usd": 0,
        "available_nano_usd": 7_000,
    }
    key, _ = make_key(buyer)
    now, model_id = timezone.now(), uuid.uuid4()
    for number in range(3):
        insert_usage(
            prediction_id=uuid.uuid4(),
            created_at=now,
            organization_id=buyer.id,
            api_key_id=key.id,
            model_name="seller/triage",
            model_id=model_id,
            creator_organization_id=seller.id,
            prompt_tokens=10,
            cached_tokens=0,
            completion_tokens=number + 1,
            input_micro_usd_per_mtok=1,
            output_micro_usd_per_mtok=1,
            cached_input_micro_usd_per_mtok=1,
            per_prediction_nano_usd=0,
            split_id=split_of(seller),
            cost_nano_usd=100,
            finish_reason="stop",
            receipt="x",
        )
    api = Api.of(buyer)
    page = api.get("usage?limit=2").json()
    seen = [row["prediction_id"] for row in page["results"]]
    seen += [row["prediction_id"] for row in api.client.get(page["next"], headers=api.headers).json()["results"]]
    assert len(set(seen)) == len(seen) == 3, "a cursor loses and repeats nothing, also among equal times"
    assert "receipt" not in page["results"][0]
    assert (page["results"][0]["cost_nano_usd"], page["results"][0]["refunded"]) == (100, False)
    assert api.get("usage?model=seller/other").json()["results"] == []
    assert len(api.get(f"usage?key={key.id}").json()["results"]) == 3
    (group,) = api.get("usage/summary?group_by=model").json()["results"]
    assert (group["model"], group["predictions"], group["cost_nano_usd"], group["day"]) == (
        "seller/triage",
        3,
        300,
        None,
    )
    by_day = api.get("usage/summary?group_by=day&limit=1").json()
    assert (len(by_day["results"]), by_day["next"]) == (1, None)
    assert api.get("usage/summary?limit=0").status_code == 400
    earned = Api.of(seller, "publish").get("earnings").json()
    assert (earned["total_nano_usd"], earned["consumers"]) == (240, 1)
    assert earned["by_model"][0]["model"] == "seller/triage"
    assert Api.of(seller).get("usage").json()["results"] == []


def test_sums_of_usage_and_earnings_page_by_cursor() -> None:
    buyer, seller = make_organization("buyer"), make_organization("seller")
    for days, model in itertools.product((0, 1, 4), (1, 2, 3)):
        insert_past(buyer, seller, days, model, cost=100 * model)
    of_buyer, of_seller = Api.of(buyer), Api.of(seller, "publish")

    def pages(api: Api, path: str) -> list[dict[str, Any]]:
        found = [api.get(path).json()]
        while following := found[-1]["next"]:
            found.append(api.client.get(following, headers=api.headers).json())
        return found

    for api, path, wanted in (
        (of_buyer, "usage/summary?group_by=day", 3),
        (of_buyer, "usage/summary?group_by=model", 3),
        (of_buyer, "usage/summary?group_by=model,day", 9),
        (of_buyer, "usage/summary", 9),
        (of_seller, "earnings/versions", 3),
        (of_seller, "earnings/versions?by_day=true", 9),
    ):
        whole = api.get(path).json()["results"]
        in_pages = pages(api, f"{path}{'&' if '?' in path else '?'}limit=2")
        assert [row for page in in_pages for row in page["results"]] == whole and len(whole) == wanted, path
        assert len(in_pages) == (wanted + 1) // 2, path
    whole, in_pages = of_seller.get("earnings").json(), pages(of_seller, "earnings?limit=2")
    assert len(in_pages) == 2 and {page["models"] for page in in_pages} == {3}
    for group in ("by_day", "by_model"):
        assert [row for page in in_pages for row in page[group]] == whole[group]
    assert in_pages[0]["total_nano_usd"] == in_pages[1]["total_nano_usd"] == whole["total_nano_usd"]

    (cursor,) = parse_qs(urlsplit(of_buyer.get("usage/summary?limit=2").json()["next"]).query)["cursor"]
    foreign = Api.of(seller).get(f"usage/summary?cursor={cursor}").json()
    assert foreign == {"next": None, "results": []}, "a cursor of another organization shows nothing of it"
    nul = encode_base64url(b'["versions",[{"name":"\\u0000"}]]')
    for path, wrong in (("usage/summary?group_by=day", cursor), ("earnings", cursor), ("earnings/versions", nul)):
        for text in (wrong, "bm8", "!", "", "x" * 3_000):
            query = f"{path}{'&' if '?' in path else '?'}cursor={text}"
            api = of_buyer if path.startswith("usage") else of_seller
            assert error_of(api.get(query), 400)["field"] == "cursor", query


def test_a_top_up_outside_the_limits_is_refused() -> None:
    api = Api.of(make_organization("acme"))
    for amount in (0, 99, 10**7, "x"):
        assert error_of(api.post("topups", {"amount_cents": amount}), 400)["field"] == "amount_cents"
    assert api.get("topups").json()["results"] == []


def test_a_payment_provider_out_of_reach_is_told_and_no_money_moves() -> None:
    api = Api.of(make_organization("acme"))
    error = error_of(api.post("topups", {"amount_cents": 500}), 503)
    assert error["code"] == "payment_provider_unavailable"
    assert api.get("wallet").json()["posted_nano_usd"] == 0


def test_custody_of_a_model_that_was_never_released_is_empty() -> None:
    vault_services.bootstrap_platform_keys()
    organization = make_organization("acme")
    make_model(organization)
    found = Api.of(organization).get("models/acme/triage/custody").json()
    assert found["releases"] == [] and found["checkpoint"] is None and len(found["vault_public_key"]) == 43


def test_retiring_takes_a_version_off_sale_and_tells_replicas(monkeypatch, django_capture_on_commit_callbacks) -> None:
    pushed: list[str] = []
    monkeypatch.setattr("marketplace.vault.tasks.push_revocation.delay", pushed.append)
    version = make_version(make_model(make_organization("acme")))
    with django_capture_on_commit_callbacks(execute=True):
        answer = Api.of(version.model.organization).post(f"versions/{version.id}/retire")
    assert answer.json()["state"] == "retired" and pushed == [str(version.id)]
    assert Version.objects.get().state == "retired"
    error_of(Api().get("models/acme/triage"), 404)


def test_the_schema_describes_every_operation_without_complaint(capsys) -> None:
    response = Api().get("schema")
    assert response.status_code == 200
    schema = response.json()
    assert schema["openapi"].startswith("3.1")
    operations = {
        operation["operationId"]
        for path, methods in schema["paths"].items()
        if path.startswith("/api/v1/")
        for operation in methods.values()
    }
    assert {"create_token", "start_version", "upload_chunk", "get_wallet", "export_custody"} <= operations
    assert len(operations) >= 34
    assert schema["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    complaints = capsys.readouterr().err
    assert "Error" not in complaints and "Warning" not in complaints, complaints
