"""The one mechanism of seals: every field counts, every way to write seals, every way to load checks."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from django.db.models import F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marketplace.accounts.models import ApiKey, Membership, User
from marketplace.accounts.seals import SealBroken, SealedModel, require_seal
from marketplace.accounts.seals.beside import PROTECTED
from marketplace.accounts.seals.macs import seal_of
from tests.marketplace import thief
from tests.marketplace.catalog.factories import add_member, make_key, make_organization, make_user

ROOT = Path(__file__).parents[3]
SEALED = [model for model in apps.get_models() if issubclass(model, SealedModel)]

values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text()
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.just(UTC))
    | st.lists(st.text() | st.integers(0, 9), max_size=3)
    | st.dictionaries(st.text(), st.text(), max_size=3)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(values, min_size=1, max_size=4), st.lists(values, min_size=1, max_size=4))
def test_two_rows_share_a_seal_only_if_they_are_the_same(first: list[Any], second: list[Any]) -> None:
    def name(row: list[Any]) -> tuple[str, ...]:
        return tuple(f"f{i}" for i in range(len(row)))

    same = [(type(v), v) for v in first] == [(type(v), v) for v in second]
    assert (seal_of("t", name(first), first) == seal_of("t", name(second), second)) == same
    assert seal_of("t", name(first), first) != seal_of("u", name(first), first), "of another table"
    require_seal("t", name(first), first, seal_of("t", name(first), first))


def sample(field: Any) -> list[Any]:
    """Return two different values of a column's kind."""
    if field.is_relation:
        return sample(field.target_field)
    kinds: list[tuple[type, list[Any]]] = [
        (models.UUIDField, [uuid.UUID(int=1), uuid.UUID(int=2)]),
        (models.BooleanField, [False, True]),
        (models.IntegerField, [1, 2]),
        (models.DateTimeField, [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)]),
        (models.BinaryField, [b"a", b"b"]),
        (models.JSONField, [{}, {"a": "b"}]),
    ]
    for kind, found in kinds:
        if isinstance(field, kind):
            return found
    return [["a"], ["b"]] if hasattr(field, "base_field") else ["a", "b"]


@pytest.mark.parametrize(
    ("model", "column"), [(model, column) for model in SEALED for column in model.SEALED], ids=lambda part: str(part)
)
def test_every_declared_field_is_under_the_seal(model: type[SealedModel], column: str) -> None:
    fields = {name: sample(model._meta.get_field(name)) for name in model.SEALED}
    one, other = model(), model()
    for name, (first, second) in fields.items():
        setattr(one, name, first)
        setattr(other, name, second if name == column else first)
    assert one.sealed() != other.sealed()
    setattr(other, column, fields[column][0])
    assert one.sealed() == other.sealed()


def test_everything_that_carries_authority_is_sealed() -> None:
    assert {model.__name__ for model in SEALED} == {
        "ApiKey",
        "AutoTopUp",
        "EnrolledReplica",
        "FleetCredential",
        "Invite",
        "Membership",
        "Model",
        "PayoutAccount",
        "PlatformKey",
        "ReleaseOrder",
        "Replica",
        "SavedCard",
        "SigningKey",
        "StripeCustomer",
        "Transfer",
        "User",
        "Version",
    }
    assert {model.__name__ for model in PROTECTED} == {"Authenticator", "EmailAddress"}


def test_no_statement_past_the_orm_writes_a_sealed_column() -> None:
    tables = {model._meta.db_table: {*model.SEALED, "seal"} for model in SEALED}
    tables |= {model._meta.db_table: set(columns) for model, columns in PROTECTED.items()}
    found = []
    for app in ("marketplace", "billing"):
        for path in (ROOT / app).rglob("*"):
            if path.suffix not in (".py", ".sql") or "migrations" in path.parts:
                continue
            for match in re.finditer(
                r"(?is)\b(INSERT INTO|UPDATE)\s+(\w+)(?:\s+(?:AS\s+)?\w+)?\s*(.*?)(?:\bWHERE\b|;|\Z)", path.read_text()
            ):
                statement, table, rest = match[1].upper(), match[2], match[3]
                columns = set(re.findall(r"(\w+)\s*=", rest))
                if table in tables and (statement != "UPDATE" or columns & tables[table]):
                    found.append((path.name, statement, table))
    assert not found


@pytest.mark.django_db
def test_every_way_to_write_through_the_orm_seals() -> None:
    organization = make_organization("acme")
    people = [make_user() for _ in range(4)]
    Membership.objects.bulk_create([Membership(organization=organization, user=people[0], role="viewer")])
    Membership(organization_id=str(organization.pk), user_id=str(people[1].pk), role="viewer").save()
    Membership.objects.update_or_create(organization=organization, user=people[2], defaults={"role": "viewer"})
    Membership.objects.update_or_create(organization=organization, user=people[2], defaults={"role": "admin"})
    organization.memberships.create(user=people[3], role=Membership.Role.VIEWER)
    assert Membership.objects.filter(user__in=people).update(role="developer") == 4
    assert [row.role for row in Membership.objects.filter(user__in=people)] == ["developer"] * 4
    assert Membership.objects.filter(user__in=people).update(role="viewer", created_at=F("created_at")) == 4
    with pytest.raises(TypeError, match="not with expressions"):
        Membership.objects.update(role=F("role"))
    with pytest.raises(TypeError, match="update"):
        Membership.objects.bulk_update(list(Membership.objects.all()), ["role"])


@pytest.mark.django_db
def test_an_object_that_is_out_of_date_does_not_undo_or_break_what_others_changed() -> None:
    key, _ = make_key(make_organization("acme"))
    old, new = ApiKey.objects.get(pk=key.pk), ApiKey.objects.get(pk=key.pk)
    new.allowed_models = ["acme/triage"]
    new.save(update_fields=["allowed_models"])
    old.expires_at = datetime(2999, 1, 1, tzinfo=UTC)
    old.save(update_fields=["expires_at"])
    found = ApiKey.objects.get(pk=key.pk)
    assert (found.allowed_models, found.expires_at) == (["acme/triage"], old.expires_at)


@pytest.mark.django_db
def test_every_way_to_load_checks() -> None:
    person = add_member(make_organization("acme"), "viewer")
    loaded = Membership.objects.get(user=person)
    thief.change("accounts_membership", "user_id = %s", person.pk, role="owner")
    for load in (
        lambda: list(Membership.objects.all()),
        lambda: Membership.objects.only("role").get(user=person),
        lambda: Membership.objects.defer("role").get(user=person),
        lambda: list(Membership.objects.raw("SELECT * FROM accounts_membership")),
        lambda: loaded.refresh_from_db(fields=["role"]),
        lambda: list(User.objects.prefetch_related("memberships")),
        lambda: Membership.objects.select_for_update().filter(user=person).first(),
        lambda: Membership.objects.update(role="viewer"),
    ):
        with pytest.raises(SealBroken):
            load()
    with pytest.raises(TypeError, match="loaded whole"):
        list(Membership.objects.raw("SELECT id, user_id FROM accounts_membership"))
