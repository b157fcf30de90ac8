"""The audit log: who acted, filters, files, and seals that a changed row breaks."""

from __future__ import annotations

import csv
import io
import json
from datetime import date, timedelta
from typing import Any

import pytest
import time_machine
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection, transaction
from django.utils import timezone

from marketplace.accounts import audit, audit_files, audit_seals
from marketplace.accounts.audit_files import file_of
from marketplace.accounts.audit_names import FORMER, PLATFORM, STAFF, names_of
from marketplace.accounts.models import AuditEntry, AuditSeal, Organization, User
from marketplace.privacy.services import erase_user
from tests.database import as_superuser
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import add_member, make_key, make_organization, make_user

pytestmark = pytest.mark.django_db
START = timezone.now() - timedelta(days=4)


@pytest.fixture
def acme() -> Organization:
    with time_machine.travel(START):
        return make_organization("acme")


@pytest.fixture
def owner(acme: Organization) -> User:
    return acme.memberships.get().user


def write_three_days(acme: Organization, owner: User) -> None:
    """Entries of three days, one of which has none of acme's."""
    other = make_organization("other")
    for days, organization in ((0, acme), (0, acme), (1, other), (2, acme)):
        with time_machine.travel(START + timedelta(days=days, seconds=1)):
            audit.record(
                organization=organization, actor=audit.Actor(user=owner), act="budget.moved", data={"from": "a"}
            )


def test_actors_are_named_when_the_log_is_read(acme: Organization, owner: User) -> None:
    key, _ = make_key(acme)
    admin, staff = add_member(acme, "admin"), make_user("staff@example.com", is_staff=True)
    actors = [
        (audit.Actor(user=owner), owner.email),
        (audit.Actor(user=owner, key=key), f"key ik_{key.prefix}_…"),
        (audit.Actor(user=staff, as_staff=True), STAFF),
        (audit.PLATFORM, PLATFORM),
        (audit.Actor(user=admin), FORMER),
    ]
    entries = [audit.record(organization=acme, actor=actor, act="x.done") for actor, _ in actors]
    erase_user(user=admin, by=admin.pk)
    assert list(names_of(entries).values()) == [name for _, name in actors]
    assert names_of(entries, for_staff=True)[entries[2].pk] == "staff@example.com"


def test_the_edge_says_who_acts_and_services_record_it(acme: Organization, owner: User) -> None:
    with audit.acting(audit.Actor(user=owner)):
        audit.record(organization=acme, act="x.done")
    audit.record(organization=acme, act="x.done")
    assert list(AuditEntry.objects.filter(act="x.done").order_by("id").values_list("user_id", flat=True)) == [
        owner.pk,
        None,
    ]
    key, text = make_key(acme, "account")
    Api(text).post("budgets", {"name": "team"})
    entry = AuditEntry.objects.get(act="budget.created")
    assert (entry.api_key_id, entry.user_id) == (key.pk, owner.pk)


def test_the_api_lists_filters_and_exports(acme: Organization, owner: User, monkeypatch: Any) -> None:
    with time_machine.travel(START - timedelta(days=1)):
        api = Api.of(acme, "account")
    write_three_days(acme, owner)
    audit.record(organization=acme, actor=audit.PLATFORM, act="key.revoked", subject="=cmd()")
    day = (START + timedelta(days=2)).date()
    everything = api.get("audit?limit=2").json()
    assert [row["act"] for row in everything["results"]] == ["key.revoked", "budget.moved"] and everything["next"]
    assert everything["results"][1]["actor"] == owner.email
    for query, count in (
        ("act=budget", 3),
        ("act=bud", 0),
        (f"user_id={owner.pk}", 4),
        (f"since={day}&until={day}", 1),
    ):
        assert len(api.get(f"audit?{query}").json()["results"]) == count, query
    error_of(api.get("audit?since=x"), 400)
    lines = api.get("audit/export?act=budget").content.decode().splitlines()
    assert [json.loads(line)["act"] for line in lines] == ["budget.moved"] * 3
    table = list(csv.reader(io.StringIO(file_of(acme, audit.Filters(), "csv").content.decode())))
    assert table[0][:3] == ["id", "created_at", "actor"] and table[-1][4] == "'=cmd()"
    assert "other" not in str(table)
    monkeypatch.setattr(audit_files, "MAX_ENTRIES", 2)
    assert error_of(api.get("audit/export"), 400)["code"] == "too_many_entries"


def test_staff_decisions_are_listed_for_staff(acme: Organization) -> None:
    staff = make_user(is_staff=True)
    audit.record(organization=acme, actor=audit.Actor(user=staff, as_staff=True), act="review.refused")
    own = Api.of(acme, "account").get("audit?act=review").json()["results"][0]
    assert (own["actor"], own["user_id"]) == (STAFF, None)
    error_of(Api.of(acme).get("platform/audit"), 403)


def test_seals_hold_until_a_row_is_changed(acme: Organization, owner: User, capsys: Any) -> None:
    write_three_days(acme, owner)
    made = audit_seals.seal_days()
    assert made == AuditSeal.objects.count() and audit_seals.seal_days() == 0
    assert AuditSeal.objects.filter(organization=acme).count() == 2
    assert not audit_seals.verify() and not audit_seals.verify(organization=acme)
    call_command("verify_audit")
    seal = Api.of(acme, "account").get("audit/seals").json()["results"][0]
    assert (len(seal["digest"]), seal["entries"]) == (64, 1)


@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE accounts_auditentry SET data = '{}' WHERE id = {id}",
        "UPDATE accounts_auditentry SET user_id = gen_random_uuid() WHERE id = {id}",
        "UPDATE accounts_auditentry SET created_at = created_at + interval '1 microsecond' WHERE id = {id}",
        "DELETE FROM accounts_auditentry WHERE id = {id}",
        "INSERT INTO accounts_auditentry (organization_id, as_staff, act, subject, data, created_at) "
        "SELECT organization_id, false, 'x.done', '', '{}', created_at + interval '1 day' FROM accounts_auditentry "
        "WHERE id = {id}",
        "UPDATE accounts_auditseal SET digest = sha256('x') WHERE organization_id IS NOT NULL AND id = "
        "(SELECT min(id) FROM accounts_auditseal WHERE organization_id IS NOT NULL)",
    ],
)
def test_a_forged_row_breaks_its_seal(acme: Organization, owner: User, forgery: str) -> None:
    write_three_days(acme, owner)
    audit_seals.seal_days()
    entry = AuditEntry.objects.filter(organization=acme, act="budget.moved").earliest("id")
    forge(forgery.replace("{id}", str(entry.pk)))
    broken = audit_seals.verify(organization=acme)
    assert broken and {one.organization_id for one in broken} == {str(acme.pk)}
    with pytest.raises(CommandError):
        call_command("verify_audit", "acme")


def test_a_seal_that_is_missing_breaks_the_platforms_chain(acme: Organization, owner: User) -> None:
    write_three_days(acme, owner)
    audit_seals.seal_days()
    last: date = AuditSeal.objects.filter(organization=acme).latest("day").day
    forge(f"DELETE FROM accounts_auditseal WHERE organization_id = '{acme.pk}' AND day = '{last}'")
    assert {one.organization_id for one in audit_seals.verify()} == {str(acme.pk), None}


def forge(sql: str) -> None:
    """Run SQL past the rights of the application."""
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute(sql)


def test_the_application_can_neither_change_nor_delete(acme: Organization) -> None:
    for table in (AuditEntry, AuditSeal):
        with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            table.objects.update(created_at=timezone.now())
        with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            table.objects.all()._raw_delete(using="default")
