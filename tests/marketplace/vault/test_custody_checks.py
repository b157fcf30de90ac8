"""The platform looks at its own chains and sealed rows, and tells staff what was changed past it."""

from __future__ import annotations

import pytest
from celery import current_app

from billing.models import Incident
from marketplace.vault.custody_checks import check_custody
from marketplace.vault.models import Release
from marketplace.vault.tasks import check_custody as task
from tests.database import as_superuser
from tests.marketplace import thief
from tests.marketplace.vault.factories import make_lease, make_replica, make_sold

pytestmark = pytest.mark.django_db


def test_a_whole_platform_opens_no_incident() -> None:
    sold, booted = make_sold(), make_replica()
    for _ in range(3):
        make_lease(sold.version, booted.replica)
    assert task() == 0 and not Incident.objects.exists()
    beat = {entry["task"]: entry["schedule"] for entry in current_app.conf.beat_schedule.values()}
    assert beat[task.name] <= 3600


def test_a_changed_release_is_one_incident_that_names_the_row() -> None:
    sold, other, booted = make_sold(), make_sold(), make_replica()
    for version in (sold.version, sold.version, other.version):
        make_lease(version, booted.replica)
    with as_superuser():
        thief.run("SET LOCAL session_replication_role = replica")  # no trigger
        thief.run("UPDATE vault_release SET digest = %s WHERE sequence = 2", "0" * 64)
        thief.run("SET LOCAL session_replication_role = origin")
    assert (check_custody(), check_custody()) == (1, 1)
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("custody_chain", str(sold.organization.pk))
    assert "release 2" in incident.detail["reason"]
    assert Release.objects.count() == 3


def test_a_row_of_authority_that_was_changed_is_one_incident() -> None:
    make_replica()
    thief.change("vault_enrolledreplica", "true", releases_per_hour=10**6)
    assert check_custody() == 1
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("row_seal", "vault_enrolledreplica r1")
