"""Copies of data hold what is kept of a person or an organization, no secret, and nothing of others."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command

from billing.periods import post_entries
from marketplace.privacy.errors import ExportTooLarge
from marketplace.privacy.export import user_copy, write_organization_copy
from marketplace.privacy.tables import EXPORTED, LEFT_OUT
from tests.marketplace.web.conftest import World, build_world

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery staple"
# Fields by which a row is a person's or an organization's.
PERSONAL = {"organization", "organization_id", "creator_organization_id", "user", "email", "creator"}


@pytest.fixture
def world(settings: Any) -> World:
    return build_world()


def unpack(data: bytes) -> dict[str, list[Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: [json.loads(line) for line in archive.read(name).splitlines()] for name in archive.namelist()}


def test_every_table_of_people_or_organizations_has_a_rule() -> None:
    found = {
        model._meta.db_table
        for model in apps.get_models()
        if PERSONAL & {field.name for field in model._meta.concrete_fields}
    }
    ruled = {table.name for table in EXPORTED}
    missing = found - ruled - set(LEFT_OUT)
    assert not missing, f"marketplace/privacy/tables.py says nothing about {missing}"
    assert not ruled & set(LEFT_OUT)


def test_an_organizations_copy_has_its_rows_and_no_secret_and_nothing_of_others(world: World) -> None:
    post_entries()
    target = io.BytesIO()
    rows = write_organization_copy(world.buyer, target)
    files = unpack(target.getvalue())
    assert len(files["billing_usage.jsonl"]) == len(world.usage)
    assert files["billing_posting.jsonl"][0]["amount"] == 25 * 10**9
    assert {row["user__email"] for row in files["accounts_membership.jsonl"]} == {
        "consumer@example.com",
        "developer@example.com",
    }
    assert files["export.json"][0]["rows"] == rows == sum(map(len, files.values())) - 1
    text = json.dumps(files)
    assert world.key_text not in text and bytes(world.key.digest).hex() not in text
    assert "creator@example.com" not in text and "stranger" not in text
    seller = io.BytesIO()
    write_organization_copy(world.seller, seller)
    assert unpack(seller.getvalue())["catalog_model.jsonl"][0]["slug"] == "transactions"
    assert "northbank" not in json.dumps(unpack(seller.getvalue()))


def test_a_copy_beyond_its_limit_is_refused(world: World) -> None:
    with pytest.raises(ExportTooLarge):
        write_organization_copy(world.buyer, io.BytesIO(), max_rows=10)


def test_a_persons_copy_has_address_and_memberships_but_no_password(world: World) -> None:
    found = user_copy(world.consumer)
    assert found["user"]["email"] == "consumer@example.com"
    assert found["memberships"][0]["organization__slug"] == "northbank"
    assert world.consumer.password not in str(found)


def test_the_command_writes_a_new_file_alone(world: World, tmp_path: Path) -> None:
    path = tmp_path / "copy.zip"
    call_command("export_organization", "northbank", path)
    size = path.stat().st_size
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("export_organization", "northbank", path)
    with pytest.raises(CommandError, match="no such organization"):
        call_command("export_organization", "nobody", tmp_path / "other.zip")
    assert path.stat().st_size == size and not (tmp_path / "other.zip").exists()


def test_the_page_offers_copies_and_deletions_by_role(world: World) -> None:
    owner, developer = world.client(world.consumer), world.client(world.developer)
    assert b"Delete northbank" in owner.get("/dashboard/data").content
    assert b"Delete northbank" not in developer.get("/dashboard/data").content
    copy = owner.post("/dashboard/data/organization.zip")
    assert "billing_usage.jsonl" in unpack(copy.content)
    assert developer.post("/dashboard/data/organization.zip").status_code == 403
    assert developer.post("/dashboard/data/delete-organization", {}).status_code == 403
    assert json.loads(developer.post("/dashboard/data/account.json").content)["user"]["email"].startswith("developer")


def test_a_deletion_needs_password_and_name(world: World) -> None:
    world.consumer.set_password(PASSWORD)
    world.consumer.save()
    client = world.client(world.consumer)
    address = "/dashboard/data/delete-organization"
    right = {
        "organization-name": "northbank",
        "organization-password": PASSWORD,
        "organization-give_up": "on",
    }
    for wrong in ({"organization-name": "other"}, {"organization-password": "x"}, {"organization-give_up": ""}):
        assert client.post(address, {**right, **wrong}).status_code == 422
        world.buyer.refresh_from_db()
        assert world.buyer.slug == "northbank"
    assert client.post(address, right).status_code == 302
    world.buyer.refresh_from_db()
    assert world.buyer.slug == f"erased-{world.buyer.pk.hex}"


def test_a_person_deletes_their_account_and_is_signed_out(world: World) -> None:
    world.developer.set_password(PASSWORD)
    world.developer.save()
    client = world.client(world.developer)
    address = "/dashboard/data/delete-account"
    assert client.post(address, {"user-password": "wrong"}).status_code == 422
    assert client.post(address, {"user-password": PASSWORD}).status_code == 302
    world.developer.refresh_from_db()
    assert not world.developer.is_active
    assert client.get("/dashboard/data").status_code == 302
