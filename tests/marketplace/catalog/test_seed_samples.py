"""The sample accounts: all there, again and again, with passwords from the file alone."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from billing.models import Account
from marketplace.accounts.models import Organization, User
from marketplace.catalog.models import BaseModel, Model
from tests.marketplace.catalog.factories import make_organization

pytestmark = pytest.mark.django_db
ROLES = ("staff", "finance", "health", "telecom", "consumer")


@pytest.fixture
def base(tmp_path) -> Path:
    folder = tmp_path / "tiny-base"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def credentials(tmp_path: Path, password: str) -> str:
    path = tmp_path / "logins.json"
    path.write_text(json.dumps({role: {"email": f"{role}@example.com", "password": password} for role in ROLES}))
    return str(path)


def seed(base: Path, source: str) -> str:
    out = StringIO()
    call_command("seed_samples", base_dir=str(base), credentials=source, stdout=out)
    return out.getvalue()


def test_seeding_twice_is_seeding_once_and_passwords_follow_the_file(tmp_path, base) -> None:
    seed(base, credentials(tmp_path, "first password 1"))
    counts = [model.objects.count() for model in (User, Organization, BaseModel, Model, Account)]
    output = seed(base, credentials(tmp_path, "second password 2"))
    assert [model.objects.count() for model in (User, Organization, BaseModel, Model, Account)] == counts
    assert counts[:4] == [5, 5, 1, 1]
    assert "second password" not in output
    staff = User.objects.get(email="staff@example.com")
    assert staff.is_staff and staff.check_password("second password 2") and not staff.check_password("first password 1")
    assert set(Organization.objects.values_list("slug", flat=True)) == {
        "intarsia",
        "ledgerline",
        "carepath",
        "signalbox",
        "northwind",
    }
    assert not User.objects.exclude(email="staff@example.com").filter(is_staff=True).exists()


def test_the_bare_base_is_for_sale(tmp_path, base) -> None:
    seed(base, credentials(tmp_path, "first password 1"))
    listing = Model.objects.get()
    version = listing.versions.get()
    assert listing.full_name == "intarsia/smollm2-135m-instruct" and listing.kind == "base"
    assert (version.number, version.state, version.package_digest) == (1, "published", None)
    assert version.published_at is not None and listing.prices.count() == 1
    assert listing.base_model.name == "tiny-base" and listing.base_model.context_length == 64


def test_another_base_moves_the_listing_to_it(tmp_path, base) -> None:
    seed(base, credentials(tmp_path, "first password 1"))
    (base / "model.safetensors").write_bytes(b"other weights")
    seed(base, credentials(tmp_path, "first password 1"))
    assert BaseModel.objects.count() == 2 and Model.objects.count() == 1
    assert Model.objects.get().base_model == BaseModel.objects.order_by("created_at").last()


def test_a_name_that_somebody_else_has_stops_everything(tmp_path, base) -> None:
    make_organization("carepath")
    with pytest.raises(CommandError, match="carepath"):
        seed(base, credentials(tmp_path, "first password 1"))
    assert Organization.objects.count() == 1 and not Model.objects.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"staff": {"email": "a@b.io"}}', '{"staff": "x"}'])
def test_bad_credentials_are_named_and_not_shown(tmp_path, base, text) -> None:
    path = tmp_path / "logins.json"
    path.write_text(text)
    with pytest.raises(CommandError, match=r"logins\.json"):
        seed(base, str(path))
    assert not User.objects.exists()


def test_a_folder_that_is_no_base_model_is_refused(tmp_path) -> None:
    with pytest.raises(CommandError, match=r"config\.json"):
        seed(tmp_path, credentials(tmp_path, "first password 1"))
    assert not User.objects.exists()
